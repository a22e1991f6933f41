"""The text of a file that a person wrote, with whatever editor. Pure."""


def text_of(raw: bytes) -> str:
    """Return the text of UTF-8 with or without a byte order mark. Raises ValueError with the end of a sentence."""
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in raw[:4]:
        raise ValueError("is UTF-16 or binary; save it as UTF-8")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(f"is not UTF-8 (byte 0x{raw[error.start]:02x} in line {line}); save it as UTF-8") from None
