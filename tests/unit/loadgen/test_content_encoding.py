"""Content codings, fed in pieces, against the libraries that made them."""

import gzip
import sys
import zlib

import brotli
import pytest

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
