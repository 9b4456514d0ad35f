"""Forms here carry no files; one that does is read no further than any other form."""

from typing import Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.core.files.uploadhandler import FileUploadHandler
from django.http import HttpRequest, QueryDict
from django.utils.datastructures import MultiValueDict


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
