"""Bytes in an object store that speaks S3."""

from lehr.objects.failures import ObjectDiffers, ObjectNotFound
from lehr.objects.keys import check_key
from lehr.objects.store import Digest, ObjectStore, StoredObject

__all__ = ["Digest", "ObjectDiffers", "ObjectNotFound", "ObjectStore", "StoredObject", "check_key"]
