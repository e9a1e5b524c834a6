"""Licences: which ones may be used without a word, and which somebody must answer for.

Ids are those of the SPDX licence list and of model cards; case does not matter.
"""

import re
from dataclasses import dataclass

from services.catalog.domain.errors import LicenseNotAcknowledged, UploadRefused

OWN = "own"
"""The uploader's own data."""
UNKNOWN = "unknown"

LICENSE_CHARACTERS_MAX = 200

_FREE_IDS = """
    own 0bsd afl-3.0 agpl-3.0 agpl-3.0-only agpl-3.0-or-later apache-2.0 artistic-2.0 bsd
    bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 cc cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0
    cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cdla-permissive-1.0 cdla-permissive-2.0 cdla-sharing-1.0
    ecl-2.0 epl-1.0 epl-2.0 eupl-1.1 eupl-1.2 gfdl gpl gpl-2.0 gpl-2.0-only gpl-2.0-or-later gpl-3.0
    gpl-3.0-only gpl-3.0-or-later isc lgpl lgpl-2.1 lgpl-3.0 mit mpl-2.0 ms-pl ncsa odbl odbl-1.0
    odc-by odc-by-1.0 ofl-1.1 osl-3.0 pddl pddl-1.0 postgresql unlicense wtfpl zlib
"""
_FREE = frozenset(_FREE_IDS.split())
"""Licences that allow commercial use to everybody."""

_NON_COMMERCIAL = re.compile(
    r"\b(nc|non-?commercial|research|academic|c-uda|evaluation)\b", re.IGNORECASE
)
#: Licences of their own that allow much and bind the user to terms.
_OWN_TERMS = re.compile(
    r"\b(nd|llama|gemma|openrail|bigscience|bigcode|deepfloyd|creativeml|community|falcon|qwen"
    r"|mistral-ai|nvidia|deepseek|other)",
    re.IGNORECASE,
)


def check_license(text: str, *, empty_means: str) -> str:
    """Return a licence as it is recorded.

    Raises:
        UploadRefused: it is too long, or not text.
    """
    if len(text) > LICENSE_CHARACTERS_MAX or not text.isprintable():
        raise UploadRefused(
            "license", f"must be printable text of at most {LICENSE_CHARACTERS_MAX} characters"
        )
    return text.strip() or empty_means


def concern(license_text: str) -> str | None:
    """Return what somebody must answer for before this licence is used; None where nothing is."""
    word = license_text.strip().lower()
    if word in _FREE:
        return None
    if word in ("", UNKNOWN):
        return "is not known"
    if _NON_COMMERCIAL.search(word.replace("_", "-")):
        return "forbids commercial use"
    if _OWN_TERMS.search(word):
        return "has terms of its own"
    return "is none that the platform knows (give its SPDX id)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Under which licence something is brought, from where, and whether the bringer answers."""

    license: str = ""
    acknowledges: bool = False
    origin: str = ""

    def recorded(self, *, empty_means: str, principal: str) -> tuple[str, str]:
        """Return the licence and who answers for it; nobody where nobody needs to.

        Raises:
            UploadRefused: the licence is too long, or not text.
            LicenseNotAcknowledged: somebody needs to answer for it, and the uploader does not.
        """
        text = check_license(self.license, empty_means=empty_means)
        what = concern(text)
        if what is None:
            return text, ""
        if not self.acknowledges:
            raise LicenseNotAcknowledged(text, what)
        return text, principal
