"""Texts of different length in one batch: which tokens count, and where they are compared.

Tokens that only fill a batch up are never counted. The others are moved to the front of their item (they stand at its
end where a batch is padded on the left), so position t of every item is its t-th token whatever the padding; two items
are compared at the positions that both have. Thus a batch of one and a batch of many give the same numbers.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from pliant.errors import DataError
from pliant.numerics.geometry import Geometry, Pairing, token_scale
from pliant.numerics.rates import distances_matched, norms


@dataclass(frozen=True)
class Padding:
    """Where the tokens of each item are.

    Attributes:
        order: positions of an item's tokens first, of its padding last.
        lengths: number of tokens of each item.
    """

    order: Int64[Tensor, "items positions"]
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, mask: Bool[Tensor, "items positions"]) -> "Padding | None":
        """Read a mask that is true where a token counts; None if all do.

        Raises:
            DataError: an item without any token.
        """
        mask = mask.bool()
        if bool(mask.all()):
            return None
        lengths = tuple(int(n) for n in mask.sum(1))
        if min(lengths) == 0:
            raise DataError(f"item {lengths.index(0)} of a batch is all padding; drop empty texts")
        return cls(torch.argsort((~mask).int(), dim=1, stable=True), lengths)

    def geometry(self, z: Float[Tensor, "items positions dim"], pairing: Pairing, *, scale: bool = False) -> Geometry:
        """Measure activations of one pass, as `numerics.geometry.geometry` does where nothing is padded."""
        items = [row[order[:n]] for row, order, n in zip(z, self.order.to(z.device), self.lengths, strict=True)]
        i, j = pairing.indices(len(items))
        distances = torch.stack([_between(items[a], items[b]) for a, b in zip(i.tolist(), j.tolist(), strict=True)])
        return Geometry(
            pairing.arranged(distances, len(items)),
            torch.cat([norms(item[None]) for item in items]),
            token_scale(torch.cat(items)) if scale else None,
        )


def _between(x: Tensor, y: Tensor) -> Tensor:
    both = min(len(x), len(y))
    return distances_matched(x[None, :both], y[None, :both])[0]
