"""The picture of the demo: how late each carrier left New York in each month of 2013."""

import calendar
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")  # there may be no screen

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import TwoSlopeNorm

from examples.flights import carrier_names

MONTHS: Final = calendar.month_abbr[1:]
INK, SOFT, LINE = "#1c2733", "#66727f", "#c2410c"
_COLOURS: Final = "RdYlBu_r"
_FEW: Final = 10
"""A mean over fewer departures says little: it is drawn faintly."""


def draw(groups: Mapping[tuple[str, int], tuple[int, ...]], path: Path, how: str) -> Path:
    """Draw it.

    Args:
        groups: By carrier and month: flights, how many departed, minutes that they were late in
            all; more is ignored.
        path: Of the PNG file.
        how: They were computed.
    """
    carriers = sorted({carrier for carrier, _ in groups})
    departed, minutes = (_matrix(groups, carriers, column) for column in (1, 2))
    order = np.argsort(-_means(minutes.sum(axis=1), departed.sum(axis=1)))
    carriers = [carriers[each] for each in order]
    departed, minutes = departed[order], minutes[order]
    figure, axes = plt.subplots(
        2,
        2,
        figsize=(12.5, 8.2),
        gridspec_kw={"width_ratios": [4, 1.25], "height_ratios": [1, 5.2]},
        layout="constrained",
    )
    (by_month, corner), (grid, by_carrier) = axes
    corner.axis("off")
    norm = TwoSlopeNorm(vmin=-5, vcenter=12, vmax=40)
    image = _draw_grid(grid, departed, minutes, carriers, norm)
    _draw_months(by_month, _means(minutes.sum(axis=0), departed.sum(axis=0)))
    _draw_carriers(by_carrier, departed.sum(axis=1), minutes.sum(axis=1), norm)
    bar = figure.colorbar(image, ax=corner, orientation="horizontal", fraction=0.9, aspect=12)
    bar.set_label("mean departure delay, minutes", color=SOFT, fontsize=9)
    bar.outline.set_visible(False)
    figure.suptitle(
        "Who leaves New York late, and when: mean departure delay in minutes, 2013\n",
        x=0.01,
        ha="left",
        fontsize=15,
        fontweight="bold",
        color=INK,
    )
    total = sum(each[0] for each in groups.values())
    figure.text(
        0.011,
        0.952,
        f"{total:,} flights, {how}; faint: fewer than {_FEW} departures",
        fontsize=10,
        color=SOFT,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, facecolor="white")
    plt.close(figure)
    return path


def _matrix(
    groups: Mapping[tuple[str, int], tuple[int, ...]], carriers: list[str], column: int
) -> Any:
    found = np.zeros((len(carriers), len(MONTHS)))
    for (carrier, month), numbers in groups.items():
        found[carriers.index(carrier), month - 1] = numbers[column]
    return found


def _means(minutes: Any, departed: Any) -> Any:
    """Not a number where nothing departed."""
    return np.divide(minutes, departed, out=np.full_like(minutes, np.nan), where=departed > 0)


def _draw_grid(
    axes: Any, departed: Any, minutes: Any, carriers: list[str], norm: TwoSlopeNorm
) -> Any:
    means = _means(minutes, departed)
    image = axes.imshow(means, cmap=_COLOURS, norm=norm, aspect="auto")
    image.set_alpha(np.where(departed < _FEW, 0.25, 1.0))
    for row, column in np.argwhere(departed > 0):
        mean, is_few = means[row, column], departed[row, column] < _FEW
        is_dark = not 0 <= mean <= 30
        axes.text(
            column,
            row,
            f"{mean:.0f}",
            ha="center",
            va="center",
            fontsize=9,
            color="white" if is_dark and not is_few else INK,
            alpha=0.6 if is_few else 1,
        )
    names = carrier_names()
    axes.set_xticks(range(len(MONTHS)), MONTHS)
    axes.set_yticks(range(len(carriers)), [names.get(each, each) for each in carriers])
    axes.set_xticks(np.arange(len(MONTHS) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(carriers) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=2)
    _plain(axes)
    axes.tick_params(which="both", length=0)
    return image


def _draw_months(axes: Any, means: Any) -> None:
    months = range(len(MONTHS))
    axes.fill_between(months, means, color=LINE, alpha=0.12)
    axes.plot(months, means, color=LINE, linewidth=2, marker="o", markersize=4)
    for month in np.flatnonzero(np.isfinite(means)):
        axes.annotate(
            f"{means[month]:.0f}",
            (month, means[month]),
            textcoords="offset points",
            xytext=(0, 7),
            ha="center",
            fontsize=9,
            color=LINE,
        )
    axes.set_xlim(-0.5, len(MONTHS) - 0.5)
    axes.set_ylim(0, max(1, np.nanmax(means)) * 1.35)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title("all carriers", loc="left", fontsize=9, color=SOFT)
    _plain(axes)


def _draw_carriers(axes: Any, departed: Any, minutes: Any, norm: TwoSlopeNorm) -> None:
    means = np.nan_to_num(_means(minutes, departed))
    rows = range(len(means))
    colours = plt.get_cmap(_COLOURS)(norm(means))
    axes.barh(rows, means, color=colours, height=0.72)
    for row in rows:
        text = f"{means[row]:.0f} min · {departed[row]:,.0f}"
        axes.text(means[row] + 0.5, row, text, va="center", fontsize=8.5, color=INK)
    axes.set_xlim(min(0, means.min()), max(1, means.max()) * 2.1)
    axes.set_ylim(len(means) - 0.5, -0.5)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title("year · departures", loc="left", fontsize=9, color=SOFT)
    _plain(axes)


def _plain(axes: Any) -> None:
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(colors=INK, labelsize=10)
