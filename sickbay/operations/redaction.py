"""What may stand in a log line: no secret (faults.md X1), no character that paints a false line (X2), no text without end.

It judges finished text, because secrets come in ways that nobody planned: the repr of an exception that holds a request, a URL in
a client's warning. It would rather hide too much than too little. It must stay linear in the text: what it reads may be hostile.
"""

from __future__ import annotations

import re
from typing import Final

#: What stands where a secret was.
HIDDEN: Final = "***"
#: Secrets known by their value: so many at most, and none so short that it would be found in every word.
KNOWN_MAX: Final = 32
KNOWN_CHARACTERS_MIN: Final = 6

#: Names whose value is a secret, wherever the name ends so: SICKBAY_DB_PASSWORD, sasl_plain_password, client-key-data.
_NAMES: Final = (
    r"(?:password|passwd|pwd|passphrase|secret|token|credentials?|api[_-]?key|private[_-]?key|client-key-data"
    r"|last-applied-configuration|set-cookie|cookie)"
)
#: Between a name and its value: ``=``, ``: ``, ``": "``, ``\": \"``, ``', b'`` of a pair of bytes.
_BETWEEN: Final = r"\\{0,8}[\"']?\s{0,8}[:=,]\s{0,8}"
#: A quote after any number of backslashes belongs to the value: in a repr of a repr one cannot tell. A value whose own quotes are
#: escaped ends with the same escaped quote, or with the text.
_VALUE: Final = (
    r"(?:b?\"(?:[^\"\\]|\\+[^\\])*\"?"
    r"|b?'(?:[^'\\]|\\+[^\\])*'?"
    r"|(?P<quote>\\{1,8}[\"'])(?:(?!(?<!\\)(?P=quote)).)*(?:(?P=quote))?"
    r"|[^\s,;&\"'}\])]+)"
)
_NAMED: Final = re.compile(
    rf"({_NAMES}\\{{0,8}}[\"']?\s{{0,8}}[:=]\s{{0,8}}|{_NAMES}\\{{0,8}}[\"']\s{{0,8}},\s{{0,8}}){_VALUE}",
    re.IGNORECASE | re.DOTALL,
)
#: ``Authorization: Bearer …`` as a header, in a repr of headers, or as a pair.
_AUTHORIZATION: Final = re.compile(
    rf"(authorization{_BETWEEN})(?:b?\"[^\"\r\n]*\"?|b?'[^'\r\n]*'?|[^\"'\r\n,}}\])]+)", re.IGNORECASE
)
_BEARER: Final = re.compile(r"\b(bearer\s{1,8})[\w.~+/=-]{6,}", re.IGNORECASE | re.ASCII)
#: ``scheme://user:password@host``; a password that is not quoted as it should be may hold ``/`` and ``@`` itself.
_USERINFO: Final = re.compile(r"(://[^\s:/@]{0,256}:)[^\s\"'<>]{1,512}(@)")
_WEB_TOKEN: Final = re.compile(r"\beyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*", re.ASCII)
_PRIVATE_KEY: Final = re.compile(r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----[^-]*(?:-----END[^-]*-----)?")
#: One entry of a Pod's environment, in a document or in a repr of one: ``"value": "…"``.
_ENVIRONMENT: Final = re.compile(rf"((?:[\"'])value\\{{0,8}}[\"']\s{{0,8}}:\s{{0,8}}){_VALUE}", re.DOTALL)
#: The end of a text that was cut may be the beginning of a secret that no rule knows without its end.
_DOUBTFUL_END: Final = 1_024

_known: set[str] = set()


def conceal(secret: str) -> None:
    """Hide this value wherever it stands from here on: a password or token that was read from a file."""
    if len(secret) >= KNOWN_CHARACTERS_MIN and len(_known) < KNOWN_MAX:
        _known.add(secret)


def is_secret_name(name: str) -> bool:
    """Whether a value of this name is a secret."""
    return _NAMED.search(f"{name}=x") is not None


def redacted(text: str, most: int) -> str:
    """Return ``text`` without secrets, of ``most`` characters at most; what was left out is said."""
    whole = len(text)
    if whole > most:
        text = text[:most]
    for secret in _known:
        text = text.replace(secret, HIDDEN)
    text = _PRIVATE_KEY.sub(HIDDEN, text)
    text = _AUTHORIZATION.sub(rf"\1{HIDDEN}", text)
    text = _BEARER.sub(rf"\1{HIDDEN}", text)
    text = _USERINFO.sub(rf"\1{HIDDEN}\2", text)
    text = _NAMED.sub(rf"\1{HIDDEN}", text)
    text = _ENVIRONMENT.sub(rf"\1{HIDDEN}", text)
    text = _WEB_TOKEN.sub(HIDDEN, text)
    if whole > most:
        text = f"{text[:-_DOUBTFUL_END]}… ({whole} characters)"
    return text


def escaped(text: str, keep: str = "") -> str:
    """Return ``text`` with every character escaped that is not printable, but for those in ``keep``.

    Control characters (C0, C1), bidirectional marks and lone surrogates are among them.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)
