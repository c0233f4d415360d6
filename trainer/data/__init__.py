"""The training text: tokenised once, packed anew for each epoch, counted line by line."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from trainer.batch import PackedBatch
from trainer.config import DataConfig
from trainer.data.cache import Counts, TokenCache, open_cache
from trainer.data.documents import BadLine
from trainer.data.packing import Row, pack_epoch, row_lengths
from trainer.errors import ConfigError
from trainer.tokenizer import Tokenizer


@dataclass(frozen=True)
class DataReport:
    """What became of the lines, and how well the first epoch packs."""

    counts: Counts
    bad_lines: tuple[BadLine, ...]
    rows: int
    row_tokens: int  # padding included

    @property
    def efficiency(self) -> float:
        """Tokens of documents over tokens of rows."""
        return self.counts.tokens / self.row_tokens

    def lines(self, shown: int = 5) -> list[str]:
        """For a log: the counts, and the first bad lines by file and line."""
        c = self.counts
        out = [
            f"data: {c.documents} documents, {c.tokens} tokens ({c.supervised} labels) of {c.lines} lines; "
            f"{c.truncated} cut short, {c.untrainable} without two labels in a row, {len(self.bad_lines)} bad",
            f"data: {self.rows} rows of {self.row_tokens} tokens, {self.efficiency:.1%} of them documents'",
        ]
        out += [f"data: {bad}" for bad in self.bad_lines[:shown]]
        if len(self.bad_lines) > shown:
            out.append(f"data: and {len(self.bad_lines) - shown} more bad lines (trainer data inspect)")
        return out


class Dataset:
    """Packed rows. ``digest`` is equal exactly where every row of every epoch is."""

    def __init__(self, cache: TokenCache, config: DataConfig) -> None:
        self.cache = cache
        self._config = config
        self._allowed = row_lengths(config.token_budget, config.length_buckets)
        parts = [cache.meta.digest, self._allowed, config.max_batch_size, config.seed]
        self.digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        self._rows = lru_cache(maxsize=2)(self._pack)

    @property
    def report(self) -> DataReport:
        """What became of the lines."""
        rows = self._rows(0)
        meta = self.cache.meta
        return DataReport(meta.counts, tuple(meta.bad_lines), len(rows), sum(row.length for row in rows))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The static lengths that rows have, ascending."""
        return self._allowed

    def num_batches(self, epoch: int) -> int:
        """Rows of an epoch; the number differs by a few from epoch to epoch."""
        return len(self._rows(epoch))

    def batch(self, epoch: int, index: int) -> PackedBatch:
        """Row ``index`` of an epoch, on CPU; IndexError past the end."""
        row = self._rows(epoch)[index]
        tokens = torch.zeros(row.length, dtype=torch.int64)
        position = torch.zeros(row.length, dtype=torch.int64)
        document = torch.full((row.length,), -1, dtype=torch.int32)
        supervised = torch.zeros(row.length, dtype=torch.bool)
        first = 0
        for order, number in enumerate(row.documents):
            ids, labels = self.cache.document(number)
            here = slice(first, first + len(ids))
            tokens[here] = torch.from_numpy(ids)
            position[here] = torch.arange(len(ids))
            document[here] = order
            supervised[here] = torch.from_numpy(labels)
            first += len(ids)
        return PackedBatch(epoch, index, tokens, position, document, supervised, row.documents)

    def _pack(self, epoch: int) -> list[Row]:
        return pack_epoch(
            self.cache.lengths,
            seed=self._config.seed,
            epoch=epoch,
            allowed=self._allowed,
            max_documents=self._config.max_batch_size,
        )


def open_dataset(config: DataConfig, tokenizer: Tokenizer) -> Dataset:
    """Tokenises what is not yet tokenised; ConfigError where no document is left to train on."""
    if not config.paths:
        raise ConfigError("data.paths is empty: name at least one jsonl file")
    longest = min(config.max_length, row_lengths(config.token_budget, config.length_buckets)[-1])
    cache = open_cache(Path(config.cache_dir), [Path(path) for path in config.paths], tokenizer, longest)
    meta = cache.meta
    if not meta.counts.documents:
        named = "; ".join(map(str, meta.bad_lines[:3]))
        raise ConfigError(
            f"no document to train on in {', '.join(config.paths)}: {len(meta.bad_lines)} bad lines, "
            f"{meta.counts.untrainable} without two labels in a row{': ' + named if named else ''}"
        )
    return Dataset(cache, config)
