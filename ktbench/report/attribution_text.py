"""What is said of shares beside their table and figure: how they were formed, what has none and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ktbench.results import Run
from ktbench.results.attribution import Attribution, Pair
from ktbench.results.run import the_part
from ktbench.results.settings import setting_text, varying


def settings_shown(attributions: Sequence[Attribution]) -> tuple[str, ...]:
    """Settings that tell the groups apart."""
    return tuple(varying([one.settings for one in attributions]))


def group_name(one: Attribution, settings: Sequence[str]) -> str:
    """`batch 4, model deepseek_v3`; empty where there is one group."""
    return ", ".join(f"{key.rpartition('.')[2]} {setting_text(one.settings.get(key))}" for key in settings)


def context_text(one: Attribution, pair: Pair) -> str:
    """What both features of a pair were added to: `base`, `+v`."""
    letters = "".join(name for name in pair.context if name.startswith("+"))
    numbers = (name for name in pair.context if not name.startswith("+"))
    return " ".join(filter(None, [letters, *numbers])) or one.baseline


def attribution_notes(one: Attribution, settings: Sequence[str]) -> Iterator[str]:
    """What has no share, then why cells of columns that show anything are empty, each reason once."""
    yield from absences(one, settings)
    at, reasons = _at(one, settings), dict[str, list[str]]()
    shown = {name for share in one.shares for name in ("first", "last") if share.missing.get(name) is None}
    for share in one.shares:
        for name, why in share.missing.items():
            if name in shown or name == "factor" or (name == "part" and share.factor):
                reasons.setdefault(f"no {_NAMES[name]}: {why}", []).append(share.feature)
    measured = any(pair.is_measured for pair in one.pairs)
    for pair in one.pairs if measured else ():
        if pair.factor is None:
            reasons.setdefault(f"no interaction: {pair.why}", []).append(f"{pair.one} with {pair.other}")
    yield from (f"{at}{'; '.join(names)} — {why}" for why, names in reasons.items())
    if one.pairs and not measured:
        yield f"{at}no interactions: no two features were measured both, each and neither beside the same others"


_NAMES = {"factor": "share", "part": "share in %", "first": "value added first", "last": "value added last"}


def absences(one: Attribution, settings: Sequence[str]) -> Iterator[str]:
    """Why there are no shares, and which features and cells are not in them."""
    at = _at(one, settings)
    if one.why:
        yield f"{at}no shares: {one.why}"
    yield from (f"{at}{feature} — has no share: {why}" for feature, why in one.aside.items())
    yield from (f"{at}cell {label} — no order passes it: {why}" for label, why in one.left_out.items())


def _at(one: Attribution, settings: Sequence[str]) -> str:
    where = group_name(one, settings)
    return f"{where}: " if where else ""


def attribution_methods(attributions: Sequence[Attribution]) -> Iterator[str]:
    """How what the table shows was formed."""
    with_orders = [one for one in attributions if one.orders]
    if with_orders:
        counts = sorted({one.orders for one in with_orders})
        orders = " or ".join(map(str, counts))
        yield (
            f"Share: what a feature adds to the log speed-up, the mean over the {orders} "
            f"order{'' if counts == [1] else 's'} that add the features one by one through measured cells (Shapley; "
            "under constraints Faigle and Kern, 1992). Shares multiply to the speed-up of all together."
        )
    if any(not one.orders and one.shares for one in attributions):
        yield "Added last: what leaving one feature out of all costs. These factors do not multiply to the whole."
    if any(pair.factor for one in attributions for pair in one.pairs):
        yield (
            "With another feature: speed-up of both times that of neither over that of each, beside the fewest other "
            "features with which all four were measured (none unless named after `at`); above 1 they gain together."
        )
    if any(not one.simulated for one in attributions):
        yield (
            "All of these are formed of the medians in the table of cells; in brackets the distribution-free interval "
            f"of what they are inside the {_rounds(attributions)} that have the cells with the cores in the same place."
        )


def _rounds(attributions: Sequence[Attribution]) -> str:
    """How many rounds the shares are formed in; those of the total where there are no shares."""
    found = [share.factor or share.last for one in attributions for share in one.shares if not one.simulated]
    counts = sorted({value.n for value in found if value})
    if not counts:
        return "rounds"
    few = "" if all(value.sound for value in found if value) else ", too few for an interval of 95%,"
    return f"{counts[0]}{f' to {counts[-1]}' if len(counts) > 1 else ''} round{'' if counts == [1] else 's'}{few}"


def attribution_caption(run: Run, attributions: Sequence[Attribution]) -> str:
    """What the figure shows."""
    simulated = all(one.simulated for one in attributions)
    ends = "" if simulated else "; whiskers: interval of the values inside rounds"
    bars = [bars_text(one) for one in attributions if one.shares]
    what = "; ".join(dict.fromkeys(bars)) or "no shares"
    matrix = ""
    if the_part(run).figure == "interactions" and any(one.pairs for one in attributions):
        bold = "" if simulated else " (bold: the interval does not hold 1)"
        matrix = (
            "; right: by which factor two features together differ from the product of each alone, beside the features "
            f"below the number{bold}"
        )
    return f"{run.header.title}{', simulated' if simulated else ''}: {what}{ends}{matrix}."


def bars_text(one: Attribution) -> str:
    """What the bars of a waterfall stand for."""
    if one.orders == 1:
        return f"what each step adds to the speed-up of {one.whole} over {one.baseline}"
    if one.orders:
        return f"order-free shares of the speed-up of {one.whole} over {one.baseline}"
    return f"what the speed-up of {one.whole} over {one.baseline} loses without each feature"
