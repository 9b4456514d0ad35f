"""An S3-compatible store for the tests, its keys in a profile as a site would have them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

PROFILE = "test-store"
SECRET = "a-key-that-nobody-may-read"


@pytest.fixture(scope="session")
def s3_address() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of it, with an empty bucket named `sets`."""
    config, keys = tmp_path / "aws-config", tmp_path / "aws-keys"
    config.write_text(f"[profile {PROFILE}]\nregion = us-east-1\nendpoint_url = {s3_address}\n")
    keys.write_text(f"[{PROFILE}]\naws_access_key_id = AKTEST\naws_secret_access_key = {SECRET}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    client = boto3.Session(profile_name=PROFILE).client("s3")
    client.create_bucket(Bucket="sets")
    yield client
    for upload in client.list_multipart_uploads(Bucket="sets").get("Uploads", ()):
        client.abort_multipart_upload(Bucket="sets", Key=upload["Key"], UploadId=upload["UploadId"])
    for row in client.list_objects_v2(Bucket="sets").get("Contents", ()):
        client.delete_object(Bucket="sets", Key=row["Key"])
    client.delete_bucket(Bucket="sets")
