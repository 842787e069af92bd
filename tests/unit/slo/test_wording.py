"""Figures as people read them."""

import pytest

from surgeproof.slo.wording import number


@pytest.mark.parametrize(
    ("value", "sign", "text"),
    [
        (14170.4, "", "14,170"),
        (999.96, "", "1000"),
        (1234.0, "+", "+1,234"),
        (-0.5, "+", "-0.5"),
        (0.00012345, "", "0.0001234"),
        (0.0, "", "0"),
        (None, "", "–"),
    ],
)
def test_numbers_have_four_digits_and_never_an_exponent_of_ten_thousands(
    value: float | None, sign: str, text: str
) -> None:
    assert number(value, sign) == text
