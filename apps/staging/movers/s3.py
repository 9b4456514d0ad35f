"""Carries objects of S3-compatible stores: to them, from them, and from one to another.

A file `a/b` of a data set is the object `<prefix>/a/b`; a data set that is one file is the object `<prefix>`. Objects
that were written here carry a mark that names the version of their source, so that going on skips what is there. Big
files go in parts, and what was sent of them is asked of the store. On this machine, what arrives lies in a hidden
folder beside the target until it is whole.

Keys come from boto3's own profiles (AWS_CONFIG_FILE, AWS_SHARED_CREDENTIALS_FILE, or the environment); a profile's
`endpoint_url` names a store that is not Amazon's.
"""

import base64
import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import boto3
import botocore.exceptions
from botocore.config import Config

from apps.staging.movers.base import GIB, MoveError
from apps.staging.movers.carrier import Task
from apps.staging.movers.folder import read_whole, write_whole
from apps.staging.movers.places import HIDDEN, located, parse

PART_BYTES: Final = 16 * 2**20
MOST_PARTS: Final = 9_000  # stores take 10,000
AT_ONCE: Final = 4
MARK: Final = "switchyard"
_HOPELESS: Final = frozenset(
    {"NoSuchBucket", "InvalidBucketName", "NoSuchKey", "EntityTooLarge", "KeyTooLongError"}
)
_SETTINGS: Final = Config(
    connect_timeout=15,
    read_timeout=60,
    retries={"mode": "standard", "max_attempts": 4},
    max_pool_connections=2 * AT_ONCE,
    # Each part is sent with its MD5, which every store checks; newer sums are refused by some.
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
)


@dataclass(frozen=True, slots=True)
class Item:
    """One file or object of a data set."""

    name: str  # relative to the data set; empty: it is the data set
    size: int
    mark: str  # another one when the content has changed
    changed_s: float


class Source(Protocol):
    def items(self) -> list[Item]: ...
    def read(self, item: Item, offset: int, n_bytes: int) -> bytes: ...
    def require_unchanged(self, item: Item) -> None: ...


class Target(Protocol):
    def prepare(self, items: Sequence[Item]) -> None: ...
    def put(self, item: Item, source: Source) -> None: ...
    def finish(self) -> None: ...
    def clean(self) -> None: ...


class Objects:
    """One move from or to an object store."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def run(self) -> None:
        with _said():
            source, target = _source(self._task), _target(self._task)
            items = source.items()
            self._task.found(bytes_total=sum(item.size for item in items), bytes_there=0)
            target.prepare(items)
            with ThreadPoolExecutor(AT_ONCE) as pool:
                parts = [pool.submit(self._put, target, item, source) for item in items]
                done, _ = wait(parts, return_when=FIRST_EXCEPTION)
                if failed := [error for part in done if (error := part.exception()) is not None]:
                    self._task.aborted.set()
                    pool.shutdown(cancel_futures=True)
                    raise failed[0]
            self._task.check()
            target.finish()

    def clean(self) -> None:
        with _said():
            _target(self._task).clean()

    def interrupt(self) -> None:
        pass  # it looks at the task itself, between parts

    def _put(self, target: Target, item: Item, source: Source) -> None:
        self._task.check()
        target.put(item, source)
        source.require_unchanged(item)


def make(task: Task) -> Objects:
    """The work on a task."""
    return Objects(task)


def _source(task: Task) -> Source:
    place = task.order["source"]
    if _scheme(place) == "s3":
        return StoredSource(place)
    return FolderSource(_path_in(place))


def _target(task: Task) -> Target:
    place = task.order["target"]
    return StoredTarget(task, place) if _scheme(place) == "s3" else FolderTarget(task, place)


# Folders ------------------------------------------------------------------------------------------------------------


class FolderSource:
    """A folder or file of this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()

    def items(self) -> list[Item]:
        if self._path.is_file():
            return [self._item(self._path, "")]
        if not self._path.is_dir():
            raise MoveError(f"There is nothing at {self._path}.", permanent=True)
        return sorted(self._below(), key=lambda item: item.name)

    def read(self, item: Item, offset: int, n_bytes: int) -> bytes:
        with self._file(item).open("rb") as file:
            file.seek(offset)
            data = file.read(n_bytes)
        if len(data) < min(n_bytes, item.size - offset):
            raise MoveError(f"{item.name or self._path} became shorter while it was copied.")
        return data

    def require_unchanged(self, item: Item) -> None:
        if self._item(self._file(item), item.name).mark != item.mark:
            raise MoveError(f"{item.name or self._path} changed while it was copied.")

    def _below(self) -> Iterator[Item]:
        def fail(error: OSError) -> None:
            raise error

        for folder, folders, names in os.walk(self._path, onerror=fail):
            for name in folders:
                if (Path(folder) / name).is_symlink():
                    raise MoveError(f"{name} is a link to a folder; objects cannot keep it.", permanent=True)
            for name in names:
                path = Path(folder) / name
                if not path.resolve().is_relative_to(self._path):
                    raise MoveError(f"{name} is a link that leads out of the data set.", permanent=True)
                if not path.is_file():
                    raise MoveError(f"It cannot be copied whole: {name} is no file.", permanent=True)
                yield self._item(path, path.relative_to(self._path).as_posix())

    def _file(self, item: Item) -> Path:
        return self._path / item.name if item.name else self._path

    @staticmethod
    def _item(path: Path, name: str) -> Item:
        facts = path.stat()
        try:
            name.encode()
        except UnicodeEncodeError:
            raise MoveError(f"{name!r} is not a name that objects can have.", permanent=True) from None
        return Item(name, facts.st_size, f"{facts.st_size}-{facts.st_mtime_ns}", facts.st_mtime)


class FolderTarget:
    """A place on this machine, filled beside it and renamed when whole."""

    def __init__(self, task: Task, place: Mapping[str, str]) -> None:
        self._task = task
        path = _path_in(place)
        base = Path(parse(place["base_uri"]).path)
        self._parent = path.parent.resolve()
        self._final = self._parent / path.name
        if not self._parent.is_relative_to(base.resolve()):
            raise MoveError(f"{self._parent} lies outside the store: a link leads out of it.", permanent=True)
        self._hidden = self._parent / f"{HIDDEN}{task.order['key']}"
        self._landing = self._hidden / "whole"
        self._is_there = False

    def prepare(self, items: Sequence[Item]) -> None:
        if self._final.exists() or self._final.is_symlink():
            self._require_same(items)
            self._is_there = True
            return
        self._hidden.mkdir(parents=True, exist_ok=True)
        held = sum(path.lstat().st_size for path in self._hidden.rglob("*") if path.is_file())
        need, free = sum(item.size for item in items) - held, shutil.disk_usage(self._hidden).free
        if need > free:
            raise MoveError(
                f"There is no room: {need / GIB:.2f} GiB are to come, and {free / GIB:.2f} GiB are free."
            )
        if [item.name for item in items] != [""]:
            self._landing.mkdir(exist_ok=True)

    def put(self, item: Item, source: Source) -> None:
        final = self._landing / item.name if item.name else self._landing
        if self._is_there or self._is_same(final, item):
            self._task.moved(item.size, was_there=True)
            return
        final.parent.mkdir(parents=True, exist_ok=True)
        # By its version: what was begun of another one is of no use.
        begun = self._hidden / hashlib.sha256(f"{item.name}\0{item.mark}".encode()).hexdigest()
        with begun.open("ab") as file:
            done = min(file.tell(), item.size)
            file.truncate(done)
            self._task.moved(done, was_there=True)
            while done < item.size:
                data = source.read(item, done, min(PART_BYTES, item.size - done))
                file.write(data)
                done += len(data)
                self._task.moved(len(data))
            file.flush()
            os.fsync(file.fileno())
        os.utime(begun, (item.changed_s, item.changed_s))
        begun.rename(final)

    def finish(self) -> None:
        if not self._is_there:
            if self._final.exists():
                raise MoveError(f"Something else appeared at {self._final}.", permanent=True)
            self._landing.rename(self._final)
            os.sync()
        shutil.rmtree(self._hidden, ignore_errors=True)

    def clean(self) -> None:
        shutil.rmtree(self._hidden, ignore_errors=True)

    def _require_same(self, items: Sequence[Item]) -> None:
        wanted = {item.name: item for item in items}
        there = (
            {path.relative_to(self._final).as_posix() for path in self._final.rglob("*") if not path.is_dir()}
            if self._final.is_dir() and not self._final.is_symlink()
            else {""}
        )
        is_same = there == set(wanted) and all(
            self._is_same(self._final / name if name else self._final, item) for name, item in wanted.items()
        )
        if not is_same:
            raise MoveError(f"There is something else at {self._final} already.", permanent=True)

    @staticmethod
    def _is_same(path: Path, item: Item) -> bool:
        try:
            facts = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (
            not path.is_symlink()
            and facts.st_size == item.size
            and abs(facts.st_mtime - item.changed_s) < 1e-3
        )


# Objects ------------------------------------------------------------------------------------------------------------


class StoredSource:
    """What lies below a prefix, or one object."""

    def __init__(self, place: Mapping[str, str]) -> None:
        self._uri = place["uri"]
        self._bucket, self._key = _bucket_and_key(place)
        self._client = _client(place["profile"])

    def items(self) -> list[Item]:
        found = [self._item(row) for row in _listed(self._client, self._bucket, f"{self._key}/")]
        found = [
            item for item in found if not (item.name.endswith("/") and not item.size)
        ]  # marks of folders
        if not found:
            found = [
                Item("", item.size, item.mark, item.changed_s)
                for row in _listed(self._client, self._bucket, self._key)
                if row["Key"] == self._key and (item := self._item(row))
            ]
        if not found:
            raise MoveError(f"There is nothing at {self._uri}.", permanent=True)
        for item in found:
            if item.name and any(step in ("", ".", "..") for step in item.name.split("/")):
                raise MoveError(f"The object {item.name} has a name that no file can have.", permanent=True)
        return sorted(found, key=lambda item: item.name)

    def read(self, item: Item, offset: int, n_bytes: int) -> bytes:
        answer = self._client.get_object(
            Bucket=self._bucket,
            Key=self._key_of(item),
            Range=f"bytes={offset}-{offset + n_bytes - 1}",
            IfMatch=item.mark,
        )
        data: bytes = answer["Body"].read()
        if len(data) != n_bytes:
            raise MoveError(f"{item.name or self._uri} became shorter while it was copied.")
        return data

    def require_unchanged(self, item: Item) -> None:
        pass  # each read names the version it means

    def _key_of(self, item: Item) -> str:
        return f"{self._key}/{item.name}" if item.name else self._key

    def _item(self, row: Mapping[str, Any]) -> Item:
        name = row["Key"].removeprefix(f"{self._key}/")
        return Item(name, row["Size"], row["ETag"], row["LastModified"].timestamp())


class StoredTarget:
    """Objects below a prefix, each with the mark of its source."""

    def __init__(self, task: Task, place: Mapping[str, str]) -> None:
        self._task = task
        self._bucket, self._key = _bucket_and_key(place)
        self._client = _client(place["profile"])
        self._uploads = task.folder / "uploads"
        self._there: dict[str, str | None] = {}  # mark by name, of what lies there

    def prepare(self, items: Sequence[Item]) -> None:
        self._uploads.mkdir(mode=0o700, exist_ok=True)
        wanted = {item.name for item in items}
        for row in _listed(self._client, self._bucket, self._key):
            if row["Key"] != self._key and not row["Key"].startswith(f"{self._key}/"):
                continue
            name = row["Key"][len(self._key) + 1 :]
            mark = self._mark_of(row["Key"]) if name in wanted else None
            if mark is None:
                raise MoveError(f"There is something else at {self._uri(name)} already.", permanent=True)
            self._there[name] = mark

    def put(self, item: Item, source: Source) -> None:
        if self._there.get(item.name) == _mark(item):
            self._task.moved(item.size, was_there=True)
        elif item.size <= self._part_bytes(item):
            data = source.read(item, 0, item.size) if item.size else b""
            self._client.put_object(
                Bucket=self._bucket, Key=self._key_of(item.name), Body=data, ContentMD5=_md5(data),
                Metadata={MARK: _mark(item)},
            )  # fmt: skip
            self._task.moved(item.size)
        else:
            self._put_in_parts(item, source)

    def finish(self) -> None:
        shutil.rmtree(self._uploads, ignore_errors=True)

    def clean(self) -> None:
        for path in self._uploads.glob("*.json") if self._uploads.exists() else ():
            upload = read_whole(path) or {}
            with contextlib.suppress(self._client.exceptions.NoSuchUpload):
                self._client.abort_multipart_upload(
                    Bucket=self._bucket, Key=self._key_of(upload["name"]), UploadId=upload["id"]
                )
            path.unlink()

    def _put_in_parts(self, item: Item, source: Source) -> None:
        upload, parts = self._upload_of(item)
        key, part_bytes = self._key_of(item.name), self._part_bytes(item)
        for number, offset in enumerate(range(0, item.size, part_bytes), start=1):
            n_bytes = min(part_bytes, item.size - offset)
            if number in parts:
                self._task.moved(n_bytes, was_there=True)
                continue
            data = source.read(item, offset, n_bytes)
            answer = self._client.upload_part(
                Bucket=self._bucket,
                Key=key,
                UploadId=upload,
                PartNumber=number,
                Body=data,
                ContentMD5=_md5(data),
            )
            parts[number] = answer["ETag"]
            self._task.moved(n_bytes)
        # Asked before it becomes an object, with a mark that says what it is a copy of.
        source.require_unchanged(item)
        self._client.complete_multipart_upload(
            Bucket=self._bucket, Key=key, UploadId=upload,
            MultipartUpload={"Parts": [{"PartNumber": number, "ETag": parts[number]} for number in sorted(parts)]},
        )  # fmt: skip
        self._note_of(item).unlink(missing_ok=True)

    def _upload_of(self, item: Item) -> tuple[str, dict[int, str]]:
        """The upload in parts of this item, and the parts that are there: the one that was begun, or a new one."""
        note, key = self._note_of(item), self._key_of(item.name)
        if (begun := read_whole(note)) is not None:
            with contextlib.suppress(self._client.exceptions.NoSuchUpload):
                pages = self._client.get_paginator("list_parts").paginate(
                    Bucket=self._bucket, Key=key, UploadId=begun["id"]
                )
                return begun["id"], {
                    part["PartNumber"]: part["ETag"] for answer in pages for part in answer.get("Parts", ())
                }
        answer = self._client.create_multipart_upload(
            Bucket=self._bucket, Key=key, Metadata={MARK: _mark(item)}
        )
        write_whole(note, {"id": answer["UploadId"], "name": item.name}, is_durable=True)
        return answer["UploadId"], {}

    def _note_of(self, item: Item) -> Path:
        facts = json.dumps([item.name, item.mark, self._part_bytes(item)])
        return self._uploads / f"{hashlib.sha256(facts.encode()).hexdigest()}.json"

    def _mark_of(self, key: str) -> str | None:
        mark: str | None = self._client.head_object(Bucket=self._bucket, Key=key)["Metadata"].get(MARK)
        return mark

    def _part_bytes(self, item: Item) -> int:
        least: int = self._task.options.get("part_bytes") or PART_BYTES
        return max(least, -(-item.size // MOST_PARTS))

    def _key_of(self, name: str) -> str:
        return f"{self._key}/{name}" if name else self._key

    def _uri(self, name: str) -> str:
        return f"s3://{self._bucket}/{self._key_of(name)}"


def _client(profile: str) -> Any:
    return boto3.Session(profile_name=profile or None).client("s3", config=_SETTINGS)


def _listed(client: Any, bucket: str, prefix: str) -> Iterator[Mapping[str, Any]]:
    for answer in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        yield from answer.get("Contents", ())


def _mark(item: Item) -> str:
    # Hashed: a tag has quotes in it, which not every store keeps in what is told about an object.
    return hashlib.sha256(f"{item.size}\0{item.mark}".encode()).hexdigest()


def _md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


# Places -------------------------------------------------------------------------------------------------------------


def _scheme(place: Mapping[str, str]) -> str:
    return parse(place["base_uri"]).scheme


def _path_in(place: Mapping[str, str]) -> Path:
    """A place of this machine, below its base by the letter and, as far as it is there, in truth."""
    location = located(place)
    base = Path(parse(place["base_uri"]).path)
    if location.scheme != "file":
        raise MoveError("Objects are carried to and from this machine alone.", permanent=True)
    if not base.is_dir():
        # Not made: a disk that is not mounted must not have its place filled.
        raise MoveError(f"The store's folder {place['base_uri']} is not there.")
    path = Path(location.path)
    if path.exists() and not path.resolve().is_relative_to(base.resolve()):
        raise MoveError(f"{path} lies outside the store: a link leads out of it.", permanent=True)
    return path


def _bucket_and_key(place: Mapping[str, str]) -> tuple[str, str]:
    location = located(place)
    return location.host, location.path


@contextlib.contextmanager
def _said() -> Iterator[None]:
    """What the outside says, as an error of a move."""
    try:
        yield
    except botocore.exceptions.ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        raise MoveError(str(error), permanent=code in _HOPELESS) from error
    except (botocore.exceptions.ProfileNotFound, botocore.exceptions.NoCredentialsError) as error:
        raise MoveError(str(error), permanent=True) from error
    except botocore.exceptions.BotoCoreError as error:
        raise MoveError(str(error)) from error
    except OSError as error:
        raise MoveError(f"{error.filename or 'The store'}: {error.strerror}") from error
