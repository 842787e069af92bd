"""A profile's goodness of fit as one HTML file with charts, easy to share. Pure: data in, text out.

The pictures are SVG drawn here, so that the file needs no network and no script.
"""

from html import escape
from typing import Any

import altair as alt
import pandas as pd

from surgeproof.traces.goodness import Check, CountsCurve, DispersionCurve, Goodness, TimeCurve, WaitCurve

_NAMES = {"trace": "trace", "model": "model", "poisson": "Poisson"}
_COLOURS = alt.Scale(domain=["trace", "model", "Poisson"], range=["#1a1a1a", "#c0392b", "#7d8a97"])
_WIDTH, _HEIGHT = 370, 220
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1040px; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
table { border-collapse: collapse; margin: 1rem 0; width: 100% }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid #ddd; font-variant-numeric: tabular-nums }
td.n { text-align: right } .pass { color: #1e7d43 } .warn { color: #a66a00 } .fail { color: #b3261e; font-weight: 600 }
figure { display: inline-block; margin: .5rem .6rem 1rem 0; vertical-align: top } figcaption { font-weight: 600 }
"""


def trace_report(goodness: Goodness) -> str:
    """The whole file."""
    figures = "".join(
        f"<figure><figcaption>{escape(title)}</figcaption>{_svg(chart)}</figure>" for title, chart in _charts(goodness)
    )
    title = f"Profile {goodness.profile} against {goodness.source}"
    heads = "".join(f"<th>{name}" for name in ("about", "what", "trace", "model", "band", "bound", "result"))
    rows = "".join(_row(check) for check in goodness.checks)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>"
        f"<h1>{escape(title)}</h1>"
        f"<p><b class={goodness.result}>{goodness.result}</b>: {escape(goodness.verdict)}.</p>"
        f"<p>Kind {goodness.kind}; {goodness.requests} requests; bands: 5 to 95 % of {goodness.seeds} replicates; "
        f"rank of the trace among them and itself: p = {goodness.p_value:g}.</p>"
        f"{figures}<table><tr>{heads}</tr>{rows}</table></html>\n"
    )


def _row(check: Check) -> str:
    numbers = "".join(f"<td class=n>{text}</td>" for text in (
        f"{check.trace:g}", f"{check.model:g}", f"{check.low:g} – {check.high:g}",
    ))  # fmt: skip
    return (
        f"<tr><td>{escape(check.group)}</td><td>{escape(check.name)}</td>{numbers}"
        f"<td>{escape(check.bound)}</td><td class={check.result}>{check.result}</td></tr>"
    )


def _svg(chart: Any) -> str:
    import vl_convert

    text: str = vl_convert.vegalite_to_svg(chart.properties(width=_WIDTH, height=_HEIGHT).to_dict())
    return text


def _charts(goodness: Goodness) -> list[tuple[str, Any]]:
    curves = goodness.curves
    return [
        ("Dispersion of counts by window", _dispersion(curves.dispersion)),
        ("Toy queue: how long requests wait", _waits(curves.wait)),
        ("Rate over time", _over_time(curves.rate, "requests a second")),
        ("Requests in 10 s", _counts(curves.counts_10s)),
        ("Mean output by window", _over_time(curves.output_by_window, "output tokens")),
    ]


def _lines(frame: pd.DataFrame, x: alt.X, y: alt.Y, **mark: Any) -> Any:
    colour = alt.Color("of:N", scale=_COLOURS, title=None)
    return alt.Chart(frame).mark_line(**mark).encode(x=x, y=y, color=colour)


def _dispersion(curve: DispersionCurve) -> Any:
    long = pd.concat(
        pd.DataFrame({"window": curve.window_s, "value": getattr(curve, key), "of": name})
        for key, name in _NAMES.items()
    )
    x = alt.X("window:Q", scale=alt.Scale(type="log"), title="window, s")
    y = alt.Y("value:Q", scale=alt.Scale(type="log"), title="variance / mean")
    band = pd.DataFrame({"window": curve.window_s, "low": curve.model_low, "high": curve.model_high})
    area = alt.Chart(band).mark_area(opacity=0.2, color="#c0392b").encode(
        x=x, y=alt.Y("low:Q", scale=alt.Scale(type="log")), y2="high:Q"
    )  # fmt: skip
    return area + _lines(long, x, y, point=True)


def _waits(curve: WaitCurve) -> Any:
    """The share that waits longer, on a scale where the tail can be seen."""
    parts = []
    for key, name in _NAMES.items():
        part = pd.DataFrame({"longer": [1 - share for share in curve.share], "wait": getattr(curve, key), "of": name})
        parts.append(part[part["longer"] > 0])
    x = alt.X("wait:Q", title=f"wait for one of {curve.slots} slots, s")
    y = alt.Y("longer:Q", scale=alt.Scale(type="log"), title="share that waits longer")
    return _lines(pd.concat(parts), x, y)


def _over_time(curve: TimeCurve, title: str) -> Any:
    parts = [
        pd.DataFrame(
            {"minute": [i * curve.window_s / 60 for i in range(len(getattr(curve, key)))], "value": getattr(curve, key)}
        )
        .assign(of=_NAMES[key])
        .dropna()
        for key in ("trace", "model")
    ]
    return _lines(pd.concat(parts), alt.X("minute:Q", title="minute"), alt.Y("value:Q", title=title))


def _counts(curve: CountsCurve) -> Any:
    parts = []
    for key, name in _NAMES.items():
        ordered = sorted(getattr(curve, key))
        shares = [(i + 1) / len(ordered) for i in range(len(ordered))]
        parts.append(pd.DataFrame({"count": ordered, "share": shares, "of": name}))
    x, y = alt.X("count:Q", title="requests in a window of 10 s"), alt.Y("share:Q", title="share of windows")
    return _lines(pd.concat(parts), x, y, interpolate="step-after")
