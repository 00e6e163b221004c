"""Keys and values in pages, and the attention of a step whose tokens, of any sequences, lie one after the other.

Letters: T tokens of a step, S sequences, N pages of a table, P pages, G key-value heads, H query heads, D width of a
head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ktbench._kernels import OpenMPTeam, PagedAttention, write_pages
from ktbench.engine.decode.attention import NEUTRAL, StepAttention
from ktbench.engine.decode.inputs import CACHE
from ktbench.engine.decode.latent import absorbed_attention, as_cached
from ktbench.engine.decode.operators import attends_near
from ktbench.engine.decode.program import CallRecorder
from ktbench.engine.forms import as_numpy
from ktbench.engine.inject.registry import fits_latent_attention
from ktbench.engine.protocol import Unsupported

if TYPE_CHECKING:
    from ktbench.engine.serving.scheduler import Part

_NAME = "ktbench_paged"


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What a layer keeps of a position: `heads` keys and values of these widths.

    A `latent` layer keeps a latent and a rotated key in their place, which its heads share (DeepSeek-V2, section 2.1).
    """

    heads: int
    key_width: int
    value_width: int
    latent: bool = False

    @property
    def numbers(self) -> int:
        """Of one position."""
        return self.heads * (self.key_width + self.value_width)


class PagedCache:
    """Keys and values of all layers: those of a page, of every layer, are one piece of memory."""

    def __init__(self, shapes: Sequence[LayerShape], pages: int, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        widths = [shape.numbers * page_tokens for shape in shapes]
        self._pages = torch.empty(pages, sum(widths), dtype=torch.bfloat16)
        self._pages[0].zero_()
        begins = accumulate(widths, initial=0)
        self.layers = [self._layer(shape, begin) for shape, begin in zip(shapes, begins, strict=False)]

    def _layer(self, shape: LayerShape, begin: int) -> PagedLayer:
        if shape.latent:
            both = self._pages[:, begin : begin + shape.numbers * self.page_tokens]
            rows = both.view(-1, shape.heads, self.page_tokens, shape.key_width + shape.value_width)
            latents = rows[..., : shape.key_width]
            return PagedLayer(latents, rows[..., shape.key_width :], attended=(rows, latents))
        middle = begin + shape.heads * self.page_tokens * shape.key_width
        heads = (shape.heads, self.page_tokens)
        keys = self._pages[:, begin:middle].view(-1, *heads, shape.key_width)
        end = begin + shape.numbers * self.page_tokens
        return PagedLayer(keys, self._pages[:, middle:end].view(-1, *heads, shape.value_width))

    def content(self, page: int) -> Tensor:
        """Keys and values of a page, bf16 [numbers]: the memory itself."""
        return self._pages[page]


class PagedLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keys and values [P, G, page, D] of one layer; a step writes them where its inputs say.

    Attention reads what is `attended`, keys and values: of latents the whole rows, and the latents again.
    """

    def __init__(self, keys: Tensor, values: Tensor, attended: tuple[Tensor, Tensor] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys: Tensor = keys
        self.values: Tensor = values
        self.latent = attended is not None
        self.attended = attended or (keys, values)
        self.inputs: PagedInputs | None = None
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the memory is there."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Writes those of the step's tokens [1, G, T, D], and gives them back: attention reads pages."""
        assert self.inputs is not None
        self.inputs.write(key_states, self.keys)
        self.inputs.write(value_states, self.values)
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """No mask is made."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """Sequences differ; positions are given."""
        return 0

    def get_max_length(self) -> int:
        """As many as there are pages for."""
        return self.keys.shape[0] * self.keys.shape[2]


class PagedInputs:
    """A step of up to `tokens` tokens of up to `sequences` sequences, in memory that does not move.

    `ids` and `positions` [1, T] for the network; `sequence` and `position` [T], -1 where a row stands for no token;
    `page` and `offset` [T], where its keys and values go; `idle` [T, 1]: whether a row stands for none; `tables` [S, N]
    int64; `last` [R]: the rows whose logits are wanted.
    """

    def __init__(self, owner: PagedSteps, tokens: int, sequences: int, table_pages: int) -> None:
        self._owner, self.layers = owner, owner.cache.layers
        whole = torch.zeros(tokens, dtype=torch.int64)
        self.ids, self.positions = whole.clone()[None], whole.clone()[None]
        self.sequence, self.position = whole.clone(), torch.full_like(whole, -1)
        self.page, self.offset = whole.clone(), torch.arange(tokens) % owner.cache.page_tokens
        self.tables = torch.zeros(sequences, table_pages, dtype=torch.int64)
        self.idle = torch.ones(tokens, 1, dtype=torch.bool)
        self.last = whole[:0]
        self.attention = owner.attention
        self._used = 0

    def set(self, parts: Sequence[Part]) -> None:
        """The step that takes these parts; rows behind them stand for no token."""
        size, tables = self._owner.cache.page_tokens, self.tables.numpy()
        lengths = [part.end - part.first for part in parts]
        used = sum(lengths)
        for row, part in enumerate(parts):
            pages = part.sequence.pages
            tables[row, : len(pages)] = pages
        position = np.concatenate([np.arange(part.first, part.end) for part in parts])
        sequence = np.repeat(np.arange(len(parts)), lengths)
        self.ids.numpy()[0, :used] = [token for part in parts for token in part.sequence.tokens[part.first : part.end]]
        self.positions.numpy()[0, :used] = self.position.numpy()[:used] = position
        self.sequence.numpy()[:used] = sequence
        self.page.numpy()[:used] = tables[sequence, position // size]
        self.offset.numpy()[:used] = position % size
        self.idle.numpy()[:used] = False
        ends = np.cumsum(lengths)
        wanted = [np.arange(end - part.kept, end) for end, part in zip(ends, parts, strict=True)]
        self.last = torch.from_numpy(np.concatenate(wanted))
        self._clear(used)

    def _clear(self, used: int) -> None:
        if used < self._used:
            gone = slice(used, self._used)
            self.position[gone], self.page[gone], self.idle[gone] = -1, 0, True
            self.positions[0, gone] = self.ids[0, gone] = self.sequence[gone] = 0
            self.offset[gone] = torch.arange(used, self._used) % self._owner.cache.page_tokens
        self._used = used

    def write(self, states: Tensor, to: Tensor) -> None:
        """Keys or values [1, G, T, D] of the step's tokens go to pages [P, G, page, D]."""
        rows = states[0].transpose(0, 1)
        call = partial(write_pages, as_numpy(rows), self.page.numpy(), self.offset.numpy(), as_numpy(to))
        self._owner.recorder.do(call, states)

    def attend(
        self, queries: Tensor, layer: PagedLayer, *, scale: float, window: int | None, sinks: Tensor | None = None
    ) -> Tensor:
        """[T, H, D'] of `queries` [T, H, D] on all positions up to them, or on a window of them."""
        keys, values = layer.attended
        out = queries.new_empty(*queries.shape[:2], values.shape[-1])
        wide = None if sinks is None else sinks.float()
        call = partial(
            self.attention.forward,
            as_numpy(queries),
            as_numpy(keys),
            as_numpy(values),
            self.tables.numpy(),
            self.sequence.numpy(),
            self.position.numpy(),
            as_numpy(out),
            scale=scale,
            window=window,
            sinks=None if wide is None else wide.numpy(),
        )
        self._owner.recorder.do(call, queries, out, wide)
        return out


class PagedSteps:
    """Runs a network on paged keys and values; its attention is ours inside `of_step`, its own outside."""

    def __init__(
        self,
        network: PreTrainedModel,
        cache: PagedCache,
        team: OpenMPTeam,
        recorder: CallRecorder,
        operators: StepAttention | None,
    ) -> None:
        self.network, self.cache, self.recorder = network, cache, recorder
        self.attention = PagedAttention(team)
        self._team, self._operators = team, operators
        self._latent = latent_modules(network)
        self._layers: Any = Cache(layers=list(cache.layers))
        self._inputs: PagedInputs | None = None

    @contextmanager
    def of_step(self, inputs: PagedInputs) -> Iterator[None]:
        """Inside, attention reads and writes what these inputs say."""
        config = self.network.config
        usual, config._attn_implementation = config._attn_implementation, _NAME
        ALL_ATTENTION_FUNCTIONS.register(_NAME, self)  # no mask is registered: none is made then
        self._see(inputs)
        for module in self._latent:
            module.expand_kv = as_cached
        try:
            yield
        finally:
            config._attn_implementation = usual
            self._see(None)
            for module in self._latent:
                del module.expand_kv

    def _see(self, inputs: PagedInputs | None) -> None:
        self._inputs = inputs
        for layer in self.cache.layers:
            layer.inputs = inputs
        if self._operators is not None:
            self._operators.paged = inputs

    def logits(self, inputs: PagedInputs, kept: Tensor | int) -> Tensor:
        """[R, V] of one pass, of the rows `kept` [R]; 0 keeps all."""
        with self.of_step(inputs):
            output = self.network(
                input_ids=inputs.ids,
                position_ids=inputs.positions,
                **{CACHE: self._layers},
                use_cache=True,
                logits_to_keep=kept,
            )
        logits: Tensor = output.logits
        return logits[0]

    def __call__(  # noqa: PLR0913, as Transformers calls attention
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        scaling: float | None = None,
        sliding_window: int | None = None,
        s_aux: Tensor | None = None,
        **others: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Output [1, T, H, D'] of `query` [1, H, T, D]; keys and values were written before. Raises Unsupported."""
        unknown = {name for name, given in others.items() if given is not None} - NEUTRAL
        if unknown or query.dtype != torch.bfloat16:
            raise Unsupported(
                f"serving: attention of {type(module).__name__} takes {min(unknown, default=query.dtype)}"
            )
        assert self._inputs is not None
        layer: Any = self._inputs.layers[int(module.layer_idx)]  # type: ignore[arg-type]
        rows = query[0].transpose(0, 1)
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        if layer.latent:
            return self._latent_attention(module, rows, layer, scale)[None], None
        if layer.keys.shape[-1] != query.shape[-1]:
            raise Unsupported(f"serving: {type(module).__name__} does not keep the keys that it attends to")
        window = sliding_window
        if window is None and attends_near(module):
            window = int(module.config.sliding_window)  # type: ignore[union-attr, arg-type]
        return self._inputs.attend(rows, layer, scale=scale, window=window, sinks=s_aux)[None], None

    def _latent_attention(self, module: Any, queries: Tensor, layer: PagedLayer, scale: float) -> Tensor:
        """[T, H, D'] of `queries` [T, H, D] on latents."""
        assert self._inputs is not None
        inputs, weights = self._inputs, module.kv_b_proj.weight.view(queries.shape[1], -1, layer.keys.shape[-1])

        def gather(absorbed: Tensor) -> Tensor:
            return inputs.attend(absorbed, layer, scale=scale, window=None)

        return absorbed_attention(queries, weights, layer.values.shape[-1], gather, self._team, self.recorder)


def latent_modules(network: PreTrainedModel) -> list[Any]:
    """The attention modules of a network that keep latents."""
    return [module for module in network.modules() if not fits_latent_attention(module)]
