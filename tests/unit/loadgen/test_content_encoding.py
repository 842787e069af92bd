"""Content codings, fed in pieces, against the libraries that made them."""

import gzip
import resource
import sys
import zlib

import brotli
import pytest

from surgeproof.loadgen import content_encoding
from surgeproof.loadgen.content_encoding import CodingError, decoder_for

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TEXT = b"data: one\n\ndata: two\n\n" * 50


def raw_deflate(data: bytes) -> bytes:
    maker = zlib.compressobj(wbits=-15)
    return maker.compress(data) + maker.flush()


CODED = {
    "gzip": gzip.compress(TEXT),
    "x-gzip": gzip.compress(TEXT[:300]) + gzip.compress(TEXT[300:]),
    "deflate": zlib.compress(TEXT),
    "Deflate": raw_deflate(TEXT),
    "br": brotli.compress(TEXT),
    "zstd": zstd.compress(TEXT),
    "gzip, br": brotli.compress(gzip.compress(TEXT)),
}


@pytest.mark.parametrize("coding", CODED)
@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_a_coded_body_is_decoded_read_by_read(coding: str, size: int) -> None:
    """Any read size gives the same bytes; two gzip members and raw deflate included."""
    decode = decoder_for(coding)
    assert decode is not None
    coded = CODED[coding]
    assert b"".join(decode(coded[i : i + size]) for i in range(0, len(coded), size)) == TEXT


@pytest.mark.parametrize("coding", ["", "identity", " identity "])
def test_identity_needs_no_decoder(coding: str) -> None:
    assert decoder_for(coding) is None


def test_an_unknown_coding_is_named() -> None:
    with pytest.raises(CodingError, match="'lzma'"):
        decoder_for("lzma")


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_bytes_of_another_coding_are_refused(coding: str) -> None:
    decode = decoder_for(coding)
    assert decode is not None
    with pytest.raises(CodingError, match=coding):
        decode(b"this is plain text, not a coded body at all")


ZEROS = bytes(300 << 20)
BOMBS = {
    "gzip": gzip.compress(ZEROS, 9)[:60_000],
    "deflate": zlib.compress(ZEROS, 9)[:60_000],
    "br": brotli.compress(ZEROS),
    "zstd": zstd.compress(ZEROS),
}


@pytest.mark.parametrize("coding", BOMBS)
def test_a_read_that_decodes_to_tens_of_megabytes_ends_the_reply(coding: str) -> None:
    """300 MB of zeros take 300 kB or less: no token stream looks like that."""
    decode = decoder_for(coding)
    assert decode is not None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CodingError, match="decodes to more than 16 MB"):
        decode(BOMBS[coding])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_a_reply_has_a_limit_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_encoding, "MAX_REPLY_BYTES", 10_000)
    maker = zlib.compressobj(wbits=31)
    decode = decoder_for("gzip")
    assert decode is not None
    with pytest.raises(CodingError, match="the body decodes to more than"):
        for _ in range(100):
            decode(maker.compress(TEXT) + maker.flush(zlib.Z_SYNC_FLUSH))
