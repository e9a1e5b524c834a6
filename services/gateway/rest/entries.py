"""What requests and answers about datasets and models share."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Path, Query, Request
from fastapi.responses import RedirectResponse
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from lehr.api.catalog.v1.upload_pb2 import UploadFile, UploadPartTarget
from lehr.api.common.v1.common_pb2 import FileLink, Page
from lehr.errors import NotFound
from lehr.ids import parse_id
from services.gateway.rest.bodies import pieces
from services.gateway.rest.catalog import Catalog

COMMIT_SECONDS = 30.0
"""Deadline of a commit, which itself waits for some seconds for the end of the check."""

INT64_MAX = 2**63 - 1

Number = Annotated[int, Path(ge=0, lt=2**32, description="Number of the part, from 0.")]


class FileUnknown(NotFound):
    """The entry has no such file."""

    reason = "FILE_NOT_FOUND"


class Asked(BaseModel):
    """What a request may hold; a field that there is not is refused by its name."""

    model_config = ConfigDict(extra="forbid", strict=True)


class FileToUpload(Asked):
    """One file, known before any byte of it is sent."""

    name: str
    """Without folders: letters, digits, dot, dash and underscore."""
    size_bytes: int = Field(ge=0, le=INT64_MAX)
    sha256: str
    """Of the whole file, 64 hex digits."""


class ToUpload(Asked):
    """What datasets and models announce; the key says for which project."""

    name: str
    """Lower-case letters, digits, dot, dash and underscore."""
    files: list[FileToUpload]
    license: str = ""
    """SPDX id or text of the licence."""
    acknowledge_license: bool = False
    """The caller may use what has an unknown or non-commercial licence, and answers for it."""
    origin: str = ""
    """Where it comes from, in the caller's words."""

    def fields(self) -> dict[str, Any]:
        """Return them as the catalog's messages name them."""
        files = [FileLink(**file.model_dump()) for file in self.files]
        return {**self.model_dump(exclude={"files"}), "files": files}


class Listing(BaseModel):
    """Which page of a list."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(20, ge=1, le=500)
    """Most entries of a page."""
    after: str = Field("", max_length=1000)
    """``next`` of the page before; empty for the first."""
    name_contains: str = ""
    """Only names with this text."""

    def page(self) -> Page:
        """Return it as the catalog's messages name it."""
        return Page(page_size=self.limit, page_token=self.after)


Listed = Annotated[Listing, Query()]


class MissingPart(BaseModel):
    """A piece of a file that has not arrived."""

    number: int
    """From 0; the last part of the route that takes it."""
    offset_bytes: int
    size_bytes: int
    url: str
    """Signed address of the object store that takes the same bytes by PUT."""


class FileUpload(BaseModel):
    """A file that has not arrived as a whole."""

    name: str
    size_bytes: int
    sha256: str
    missing_parts: list[MissingPart]


class Upload(BaseModel):
    """What is still to be sent; the same request answers it again after an interruption."""

    id: str
    object: Literal["lehr.upload"] = "lehr.upload"
    is_committed: bool
    """This revision is there already; nothing is to be sent."""
    files: list[FileUpload]
    """Files with missing parts; none left means that it can be committed."""

    @classmethod
    def of(cls, entry_id: str, uploads: Iterable[UploadFile], *, is_committed: bool) -> "Upload":
        """Read what the catalog answered."""
        files = [
            FileUpload(
                **plain(upload.file), missing_parts=[plain(part) for part in upload.missing_parts]
            )
            for upload in uploads
        ]
        return cls(id=entry_id, is_committed=is_committed, files=files)


class PartTaken(BaseModel):
    """A part that has arrived."""

    object: Literal["lehr.part"] = "lehr.part"
    id: str
    file: str
    number: int
    size_bytes: int


class Deleted(BaseModel):
    """What is no longer there; deleting twice is the same as once."""

    id: str
    object: str
    deleted: Literal[True] = True


class FileKept(BaseModel):
    """A file as it was uploaded."""

    name: str
    size_bytes: int
    sha256: str


class Origin(BaseModel):
    """Where something came from."""

    kind: str
    """upload, hub, s3 or checkpoint."""
    origin: str
    """Hub id, S3 address, checkpoint id, or the uploader's words."""
    commit: str
    """Of the hub; empty for other kinds."""


class HowFar(BaseModel):
    """How far an import or check is."""

    done_bytes: int
    total_bytes: int
    """0 while unknown."""
    row_count: int


def _seconds(value: Any) -> Any:
    return int(datetime.fromisoformat(value).timestamp()) if isinstance(value, str) else value


def _state(value: Any) -> Any:
    return value.removeprefix("ENTRY_STATE_") if isinstance(value, str) else value


class Entry(BaseModel):
    """What datasets and models share."""

    id: str = Field(validation_alias=AliasChoices("dataset_id", "model_id"))
    name: str
    revision: str
    """SHA-256 in hex of what it is made of; another content is another entry."""
    state: Annotated[str, BeforeValidator(_state)]
    """UPLOADING or IMPORTING, then VALIDATING, then READY or REFUSED."""
    created_at: Annotated[int | None, BeforeValidator(_seconds)] = Field(
        None, validation_alias="create_time"
    )
    """Seconds since 1970, UTC."""
    size_bytes: int
    files: list[FileKept]
    license: str
    license_acknowledged_by: str
    """Who answers for a licence that is unknown or non-commercial; empty where nobody has to."""
    source: Origin | None = None
    progress: HowFar | None = None
    """While it is imported or checked."""


class EntryList(BaseModel):
    """A page, by name and then newest revision first."""

    object: Literal["list"] = "list"
    has_more: bool
    next: str | None
    """``after`` of the next page."""

    @staticmethod
    def around(token: str) -> dict[str, Any]:
        """Return the fields that follow from the token of the next page."""
        return {"has_more": bool(token), "next": token or None}


def plain(message: Message) -> dict[str, Any]:
    """Return a message with all its fields; 64-bit numbers are text, which pydantic reads."""
    return MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


async def take_part(
    request: Request, catalog: Catalog, *, entry_id: str, noun: str, file: str, number: int
) -> PartTaken:
    """Stream the body of a request to where the part belongs.

    Raises:
        InvalidArgument: it is no id of the noun.
    """
    target = UploadPartTarget(entry_id=parse_id(entry_id, noun), file_name=file, number=number)
    size_bytes = await catalog.send_part(target, pieces(request))
    return PartTaken(id=entry_id, file=file, number=number, size_bytes=size_bytes)


def to_file(links: Sequence[FileLink], file: str) -> RedirectResponse:
    """Send a caller on to where the bytes of a file lie, for some minutes.

    Raises:
        FileUnknown: there is no such file.
    """
    for link in links:
        if link.name == file:
            return RedirectResponse(link.url, headers={"cache-control": "no-store"})
    known = ", ".join(link.name for link in links[:20])
    raise FileUnknown(f"there is no file {file[:80]!r} in it, but {known}", file=file)
