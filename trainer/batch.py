"""The values that pass between data, targets and drafter: one packed row, and what a target says of it.

Shapes use these letters: S context tokens of a packed row, D documents in it, K taps, H hidden size,
A anchors, B block size.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class PackedBatch:
    """One packed row of documents, padded to a static length.

    ``index`` is the batch's number within the epoch: with the run's seed and the epoch it determines the
    whole batch, so that a resumed run needs one integer and no queue contents.
    """

    epoch: int
    index: int
    tokens: Tensor  # [S] int64; padding holds 0
    position: Tensor  # [S] int64; restarts at 0 in each document
    document: Tensor  # [S] int32; index of the document within the row, -1 at padding
    supervised: Tensor  # [S] bool; True where the token is a label (a response token)
    sample_ids: tuple[int, ...]  # [D]; the data set's own number of each document

    @property
    def length(self) -> int:
        """S, padding included."""
        return int(self.tokens.shape[0])


@dataclass(frozen=True)
class TargetFeatures:
    """What the frozen target says of one packed row; ``taps`` are hidden states after the tapped layers."""

    batch: PackedBatch
    taps: Tensor  # [S, K * H], concatenated in the order of the tap indices
