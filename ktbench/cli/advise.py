"""`advise`: the best settings of a model on a machine of parts, its speed with an interval, and what to upgrade."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path

from ktbench import sim
from ktbench.cli.keys import AdviceArguments, only_arguments
from ktbench.files import write_whole
from ktbench.host.describe import read_local_machine
from ktbench.resources import data_folder, read_text
from ktbench.results.published import deferral_cost, quantisation_cost
from ktbench.results.settings import model_title
from ktbench.run.feasibility import Machine, feasibility, gib
from ktbench.run.request import cells_of, new_file, read_request
from ktbench.spec.errors import RequestError, instead, refusing
from ktbench.spec.features import FEATURES, Phase
from ktbench.spec.machine import MachineSpec
from ktbench.spec.run_spec import RunSpec
from ktbench.spec.step.work import device_bytes, routed_bytes
from ktbench.spec.wire import from_plain, to_plain
from ktbench.spec.yaml_text import MOST_BYTES, plain_yaml

_HERE = "here"
_PROMPT = 2048
_TITLES: Mapping[sim.Upgrade, str] = {
    "memory": "more memory bandwidth",
    "modules": "a second module in each channel",
    "gpu": "another GPU",
    "cores": "more cores",
    "socket": "a second socket",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class AdviceRequest:
    """The words of a request. `box` is None for `cpu=here`; `prices` are those of upgrades in `currency`."""

    machine: MachineSpec
    box: sim.Box | None
    model: str
    context: int
    target: float | None
    budget: float | None
    prices: Mapping[str, float]
    currency: str
    out: Path | None


def run(words: Sequence[str]) -> int:
    """Print the advice for the machine and the model that the words describe. Raises RequestError."""
    with refusing():
        request = _read(words)
        (cell,) = _cells(request, [request.model])
        _require_positions(cell)
        question = _question(request, cell)
        print("\n".join(_lines(request, question)))
    if request.out is not None:
        text = "# Written by `python -m ktbench advise`.\n" + _yaml(request.machine)
        print(f"\nwrote {write_whole(request.out, text)}")
    return 0


def _read(words: Sequence[str]) -> AdviceRequest:
    given = only_arguments("advise", words, AdviceArguments)
    box = _box(given)
    machine = from_plain(read_local_machine(), MachineSpec) if box is None else box.machine()
    currency, prices = _prices(given)
    return AdviceRequest(
        machine=machine,
        box=box,
        model=given.model,
        context=given.context,
        target=given.target,
        budget=given.budget,
        prices=prices,
        currency=currency,
        out=new_file("advise", given.out) if given.out else None,
    )


def _box(given: AdviceArguments) -> sim.Box | None:
    if given.cpu != _HERE:
        if given.ram is None:
            raise RequestError('advise: needs ram=, such as ram="12x64 DDR5-6400"')
        return sim.read_box(given.cpu, given.sockets or 1, given.ram, given.gpu)
    parts = {key: value for key in ("sockets", "ram", "gpu") if (value := getattr(given, key)) is not None}
    for key, value in parts.items():
        raise RequestError(f"advise {key}={value}: cpu=here is the machine that `probe` described")
    return None


def _prices(given: AdviceArguments) -> tuple[str, dict[str, float]]:
    """Currency and prices of upgrades in the user's file; none without a budget."""
    if given.budget is None and given.prices is None:
        return "", {}
    if given.budget is None or given.prices is None:
        raise RequestError("advise: budget=N goes with prices=FILE.yaml, of which ktbench ships none")
    where = given.prices
    content = plain_yaml(read_text(where, where, MOST_BYTES), where, "prices")
    allowed = ("currency", *_TITLES)
    if not isinstance(content, dict) or not isinstance(content.get("currency"), str):
        raise RequestError(f"{where}: must be a mapping of {', '.join(allowed)}")
    for key, value in content.items():
        if key not in allowed:
            raise RequestError(f"{where}: {key}: unknown key{instead(key, allowed)}")
        if key != "currency" and not (isinstance(value, int | float) and value > 0):
            raise RequestError(f"{where}: {key}={value}: must be a number above 0")
    return content["currency"], {key: float(value) for key, value in content.items() if key != "currency"}


def _question(request: AdviceRequest, decode: RunSpec) -> sim.Question:
    """The cells of a model, its decode cell composed for any machine of a kind, on the one of the request."""
    work = replace(decode.workload, phase="prefill", prompt=min(_PROMPT, request.context), steps=1)
    return sim.Question(decode=decode, prefill=replace(decode, workload=work), fits=_why_not).on(request.machine)


def _cells(request: AdviceRequest, models: Sequence[str]) -> list[RunSpec]:
    """A decode cell of each model at the context, all composed at once. Raises RequestError for an unknown model."""
    machine = "ryzen_5950x" if request.machine.gpu is None else "paper_a100"
    words = (f"machine={machine}", "workload=decode", f"workload.prompt={request.context}", "model.layers=null")
    composed = read_request((f"model={','.join(models)}", *words))
    return [cell.spec for cell in cells_of(composed)]


def _require_positions(cell: RunSpec) -> None:
    most = cell.model.shape.positions
    if cell.workload.prompt > most:
        raise RequestError(f"advise context={cell.workload.prompt}: {cell.model.name} was made for {most:,} tokens")


def _why_not(spec: RunSpec) -> str:
    if spec.machine is None:
        return ""
    machine = Machine.described(replace(spec.machine, name="the machine"))  # whose parts the first line has
    reason = feasibility(spec, machine)
    return "" if reason is None else reason.why


def _lines(request: AdviceRequest, question: sim.Question) -> Iterator[str]:
    found = sim.options(question)
    yield f"{model_title(request.model)} on {request.machine.title}, context {request.context:,}"
    if request.box is not None:
        yield from _shared_channels(request.box)
    program = "ktbench's engine on cores" if request.machine.gpu is None else "KTransformers as published"
    yield f"All speeds are simulated: {program}, one request. In brackets are 90 % intervals, from the errors on"
    yield f"{len(sim.shipped_errors())} users' reports (decode) and on published speeds that no fit used (prefill)."
    if request.machine.gpu is None:
        yield "None of these is of ktbench's engine."
    legend = _legend(found)
    yield f"{legend}\n" if legend else ""
    yield from _precisions(request, found)
    target = request.target
    best = sim.advised(found, None if target is None else lambda speed: _reach(speed, target) == "yes")
    if best is None:
        yield from _elsewhere(request, question)
        return
    yield from _advice(request, best)
    yield from _upgrades(request, question, found, best)


def _shared_channels(box: sim.Box) -> Iterator[str]:
    """How fast modules run that share channels, as far as sources tell."""
    count, shared, alone = box.per_channel, box.shared_rate, box.alone_mts
    if count == 1 or box.ram.runs_at is not None:
        return
    if shared is None:
        yield f"With {count} modules in a channel memory may be slower than {alone:,} MT/s; speeds are upper limits."
    elif box.rated_mts < alone:
        yield f"With {count} modules in a channel memory runs at {box.rated_mts:,} MT/s, not {alone:,} ({shared[1]})."


def _parts(request: AdviceRequest, box: sim.Box) -> str:
    """The parts of an upgraded machine, and its memory's speed where more modules share a channel than before."""
    if request.box is None or box.per_channel <= request.box.per_channel:
        return box.title
    return f"{box.title}; memory at {box.rated_mts:,} MT/s{'' if box.shared_rate else ' at most'}"


def _legend(found: Sequence[sim.Option | sim.Unfit]) -> str:
    """What the letters of the settings stand for; empty where nothing fits."""
    engines = [one.decode.engine for one in found if isinstance(one, sim.Option)]
    used = [f for f in FEATURES if f.letter and any(engine.features[f.name] for engine in engines)]
    return "; ".join(f"{feature.mark} {feature.title}" for feature in used)


def _precisions(request: AdviceRequest, found: Sequence[sim.Option | sim.Unfit]) -> Iterator[str]:
    yield f"{'precision':<10}  {'decode, tokens/s':<22}  {'prefill, tokens/s':<22}  settings"
    for one in found:
        if isinstance(one, sim.Unfit):
            released = f" as released ({one.release.checkpoint})" if one.release else ""
            yield f"{one.precision:<10}  does not fit{released}: {one.why}"
            continue
        decode, prefill = _speed(one.decode_speed, "decode"), _speed(one.prefill_speed, "prefill")
        yield f"{one.precision:<10}  {decode:<22}  {prefill:<22}  {_settings(one)}"
        if one.release is not None:
            size = gib(routed_bytes(one.decode) + device_bytes(one.decode))
            yield f"{'':<10}  accuracy: as released, {one.release.checkpoint}, {size}"
        elif one.precision != "bf16":
            yield f"{'':<10}  accuracy: {quantisation_cost(request.model, one.precision) or 'unknown'}"


def _weights(one: sim.Option | sim.Unfit) -> str:
    return f"{one.precision} as released" if one.release else one.precision


def _settings(one: sim.Option) -> str:
    placed, device = one.decode.engine.placement, one.decode.device_precision
    where = f"{placed.ratio:.0%} of the experts on the GPU ({placed.policy})" if placed.ratio else "experts on the host"
    gpu = "" if one.decode.engine.device == "cpu" else f", GPU in {device}"
    streamed = ", streamed in prefill" if one.prefill.engine.device_prefill_tokens else ""
    return f"{one.decode.engine.label}, {where}{streamed}{gpu}"


def _speed(speed: float, phase: Phase) -> str:
    low, high = map(sim.speed_text, sim.speed_interval(speed, phase))
    return f"{sim.speed_text(speed)} [{low}, {high}]"


def _reach(speed: float, target: float) -> str:
    """Whether a decode speed reaches a target: yes or no where the whole interval does, else too close to call."""
    low, high = sim.speed_interval(speed, "decode")
    return "yes" if low >= target else "no" if high < target else "too close to call"


def _advice(request: AdviceRequest, best: sim.Option) -> Iterator[str]:
    speed = _speed(best.decode_speed, "decode")
    reached = _reached(request, best.decode_speed)
    yield f"\nbest: {_weights(best)}, {_settings(best)}: {speed} tokens/s in decode{reached}"
    if best.deferred:
        speed = _speed(best.deferring, "decode")
        cost = deferral_cost(request.model, best.deferred) or "unknown"
        reached = _reached(request, best.deferring)
        yield f"with Expert Deferral of {best.deferred} experts, which changes results: {speed} tokens/s{reached}"
        yield f"  accuracy: {cost}"


def _upgrades(
    request: AdviceRequest, question: sim.Question, found: Sequence[sim.Option | sim.Unfit], best: sim.Option
) -> Iterator[str]:
    """What each upgrade gives with the advised weights, and more accurate ones that fit then."""
    if request.box is None:
        return
    titles = _titles(request.box)
    gains: list[tuple[float, str]] = []
    yield f"\nsingle upgrades (gains within {sim.comparison_error():.0%} are too close to call):"
    for name, box in sim.upgrades(request.box).items():
        title = titles[name]
        if beyond := _beyond(request, name):
            yield f"  {title}: {beyond}"
            continue
        upgraded = question.on(box.machine())
        more = sim.again(upgraded, best)
        if isinstance(more, sim.Option):
            gains.append((more.decode_speed / best.decode_speed - 1, title))
            speed = f"{_speed(more.decode_speed, 'decode')} tokens/s, {gains[-1][0]:+.0%}"
            then = _fits_then(upgraded, found[: found.index(best)])
            yield f"  {title} ({_parts(request, box)}): {speed}{_reached(request, more.decode_speed)}{then}"
    for name, title in titles.items():
        if name not in sim.upgrades(request.box):
            yield f"  {title}: none in the catalogue for this machine"
    yield _most(sorted(gains, reverse=True), sim.comparison_error())


def _titles(box: sim.Box) -> Mapping[sim.Upgrade, str]:
    return _TITLES if box.gpu else {**_TITLES, "gpu": "a GPU"}


def _fits_then(question: sim.Question, before: Sequence[sim.Option | sim.Unfit]) -> str:
    """The most accurate of the weights that did not fit before and do for this question; empty where none does."""
    for one in before:
        if isinstance(one, sim.Unfit) and not isinstance(more := sim.again(question, one), sim.Unfit):
            return f"; {_weights(one)} fits then: {_speed(more.decode_speed, 'decode')}"
    return ""


def _beyond(request: AdviceRequest, name: str) -> str:
    """Why an upgrade is not considered; empty where it is within the budget, or where there is none."""
    price = request.prices.get(name)
    if request.budget is None or (price is not None and price <= request.budget):
        return ""
    return "has no price" if price is None else f"{price:,.0f} {request.currency}, beyond the budget"


def _reached(request: AdviceRequest, speed: float) -> str:
    return "" if request.target is None else f", reaches {request.target:g}: {_reach(speed, request.target)}"


def _most(gains: Sequence[tuple[float, str]], error: float) -> str:
    """Which upgrade helps most, as far as the simulator can tell."""
    if not gains or gains[0][0] <= error:
        return "helps most: none by more than the simulator's error"
    near = [title for gain, title in gains if log((1 + gains[0][0]) / (1 + gain)) <= log(1 + error)]
    return f"helps most: {near[0]}" if len(near) == 1 else f"helps most: too close to call between {' and '.join(near)}"


def _elsewhere(request: AdviceRequest, question: sim.Question) -> Iterator[str]:
    """Upgrades with which the model fits that fits in no precision, and models that fit as it is, the largest first."""
    yield f"\n{model_title(request.model)} fits in no precision"
    yield from _fitting_upgrades(request, question)
    names = {path.stem for path in (data_folder("conf") / "model").glob("*.yaml")} - {request.model, "tiny", "nano"}
    nearby = replace(request, context=min(request.context, _PROMPT))
    fitting = []
    for cell in _cells(nearby, sorted(names)):
        found = sim.option(_question(nearby, cell), "int4_g32")
        if not isinstance(found, sim.Unfit):
            fitting.append((routed_bytes(found.decode), cell.model.name, found.decode_speed))
    for size, name, speed in sorted(fitting, reverse=True):
        yield f"  {name} fits in int4_g32 ({gib(size)} of experts): {_speed(speed, 'decode')} tokens/s"
    if not fitting:
        yield "  no model of `conf/model` fits in int4_g32"


def _fitting_upgrades(request: AdviceRequest, question: sim.Question) -> Iterator[str]:
    if request.box is None:
        return
    titles = _titles(request.box)
    for name, box in sim.upgrades(request.box).items():
        best = None if _beyond(request, name) else sim.advised(sim.options(question.on(box.machine())))
        if best is not None:
            speed = _speed(best.decode_speed, "decode")
            yield f"  with {titles[name]} ({_parts(request, box)}) it fits in {_weights(best)}: {speed} tokens/s"


def _yaml(machine: MachineSpec) -> str:
    import yaml

    return yaml.safe_dump(to_plain(machine), sort_keys=False, allow_unicode=True, width=120)
