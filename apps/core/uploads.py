"""Forms carry no files but where a page takes one; either is read no further than any other form."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.core.files.uploadhandler import FileUploadHandler, MemoryFileUploadHandler
from django.http import HttpRequest, HttpResponse, QueryDict
from django.utils.datastructures import MultiValueDict
from django.views.decorators.csrf import csrf_exempt, csrf_protect


class NoUploads(FileUploadHandler):
    """Drops every file. Django counts no bytes of files against the limit of a form: this one does."""

    def __init__(self, request: HttpRequest | None = None) -> None:
        super().__init__(request)

    def handle_raw_input(
        self,
        input_data: Any,
        META: dict[str, Any],  # noqa: N803  (the name Django gives it by)
        content_length: int,
        boundary: str,
        encoding: str | None = None,
    ) -> tuple[QueryDict, MultiValueDict[str, Any]] | None:
        if content_length > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            raise RequestDataTooBig("The form is too large.")
        return None

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        return None

    def file_complete(self, file_size: int) -> None:
        return None


class SmallFiles(MemoryFileUploadHandler):
    """Keeps files in memory, and counts them against the limit of a form."""

    def handle_raw_input(
        self,
        input_data: Any,
        META: dict[str, Any],  # noqa: N803  (the name Django gives it by)
        content_length: int,
        boundary: str,
        encoding: str | None = None,
    ) -> None:
        if content_length > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            raise RequestDataTooBig("The form is too large.")
        self.activated = True


def takes_small_files(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """A view whose form may carry small files; around everything else that guards it."""
    checked = csrf_protect(view)

    # The check of the token reads the form: who takes the files has to be said before it.
    @csrf_exempt
    @wraps(view)
    def taking(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        request.upload_handlers = [SmallFiles(request)]
        return checked(request, *args, **kwargs)

    return taking
