"""Upper bounds on how far self-attention can bend (docs/bounds.md).

What is bounded: multi-head self-attention with q, k, v and output projection, softmax over the keys, on token matrices
X (n × dim, rows x_i) whose tokens lie in a ball of radius R_c about c₀ and have norm at most R (`TokenBall`). That set
is convex, so a bound on the Jacobian at all of its points bounds every finite difference within it.

**One head**, W_Q, W_K (head_dim × dim), W_V, logits l_ij = scale·q_iᵀk_j, P = softmax of each row. With
A = scale·W_QᵀW_K, b = scale·W_Kᵀb_Q and a_i = Aᵀx_i + b the logits are a_iᵀx_j plus terms that depend on i alone (the
key bias is in those), which the softmax ignores; the value bias adds a constant, since rows of P sum to one. With
m_i = Σ_j P_ij x_j and Cov_i = Σ_j P_ij (x_j − m_i)(x_j − m_i)ᵀ, the derivative of Σ_j P_ij x_j in the direction δX is

    Σ_j P_ij δx_j  +  Cov_i Aᵀδx_i  +  Σ_j P_ij (x_j − m_i)(a_iᵀδx_j).

1. ‖P‖₂² ≤ (largest row sum)(largest column sum) ≤ n: the first term is at most √n ‖δX‖_F.
2. Cov_i is at most the second moment about c₀ or about 0, so ‖Cov_i‖₂ ≤ r² with r = min(R_c, R): the second is at most
   ‖A‖₂ r² ‖δX‖_F.
3. With the columns √P_ij (x_j − m_i) as a matrix M_i, ‖M_i‖₂² = ‖Cov_i‖₂ ≤ r², and the third is M_i times the vector of
   √P_ij a_iᵀδx_j: squared it is at most r² ‖a_i‖² Σ_j P_ij ‖δx_j‖². Summed over i, columns of P sum to at most n:
   at most √n r max‖a_i‖ ‖δX‖_F, where ‖a_i‖ ≤ min(‖A‖₂R_c + ‖Aᵀc₀ + b‖, ‖A‖₂R + ‖b‖).

    L_h = √n + ‖A‖₂ r² + √n r max‖a_i‖

**All heads.** The output is Σ_h W_O,h W_V,h(·) plus constants, and the head outputs side by side have the squares of
their norms added up: L = min(Σ_h ‖W_O,h W_V,h‖₂ L_h, ‖W_O‖₂ (Σ_h ‖W_V,h‖₂² L_h²)^½).

**What else it covers.**
- Grouped-query heads: query head h uses key and value head h // (heads/kv_heads). Nothing above uses that heads have
  their own W_K, W_V: take the shared ones once per query head.
- Masks (causal and others): P is zero where masked, its rows still sum to one, columns still to at most n.
- Relative position bias (Swin, BEiT, T5, ALiBi) or any mask of numbers that does not depend on X: a constant added to
  l_ij has no derivative. P is another stochastic matrix; 1 to 3 hold for all of them.
- Windows: tokens are permuted (cyclic shifts too) into groups that attend to themselves only, with the same weights.
  The Jacobian is block-diagonal up to permutations, its norm the largest of the blocks': use n = tokens per window.
  Padding tokens of a window belong to the set: their values must lie in the ball.
- Rotary embedding: q_i and k_j are rotated, l_ij = scale·q_iᵀ R_ij k_j with R_ij orthogonal and independent of X (the
  identity for tokens that are not rotated). Now δl_ij = scale·(R_ij k_j)ᵀW_Q δx_i + scale·(W_KᵀR_ijᵀq_i)ᵀδx_j: biases
  stay, and 2 and 3 become r·scale·‖W_Q‖₂ max‖k_j‖ (M_i times the matrix with rows √P_ij (R_ij k_j)ᵀ, whose norm is at
  most max‖k_j‖) and √n r·scale·‖W_K‖₂ max‖q_i‖, with ‖q_i‖ ≤ min(‖W_Q c₀ + b_Q‖ + ‖W_Q‖₂R_c, ‖W_Q‖₂R + ‖b_Q‖), k alike.
  A factor on the rotary tables (length extrapolation) belongs squared into `scale`.

Not covered, and to be reported without a number: normalised queries and keys, cosine attention, logits that are capped
or pass through anything else than mask, bias and softmax.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from pliant.errors import ConfigError, MeasurementError
from pliant.numerics.rates import float64
from pliant.numerics.spectral import product_norms, require_finite, spectral_norm, spectral_norms

_UP = 1 + 1e-12
"""More than rounding in float64 can have taken away from distances and from the sums over heads."""


@dataclass(frozen=True, eq=False)
class TokenBall:
    """Tokens within `radius` of `centre` and of norm at most `largest`: the set that an attention bound holds on.

    >>> ball = TokenBall.around(torch.tensor([[0.0, 1.0], [0.0, 3.0]]))
    >>> ball.centre.tolist(), round(ball.radius, 9), round(ball.largest, 9)
    ([0.0, 2.0], 1.0, 3.0)
    """

    centre: Float[Tensor, " dim"]
    radius: float
    largest: float

    @classmethod
    def around(cls, tokens: Float[Tensor, "*batch dim"], centre: Float[Tensor, " dim"] | None = None) -> "TokenBall":
        """Return the smallest such set about the tokens' mean, or about another centre.

        Raises:
            MeasurementError: a token is not finite.
        """
        rows = float64(tokens).reshape(-1, tokens.shape[-1])
        start = cls(rows.mean(0) if centre is None else float64(centre), 0.0, 0.0)
        return start.including(rows)

    @classmethod
    def about_origin(cls, dim: int, radius: float) -> "TokenBall":
        """Return the ball of all tokens of norm at most `radius`."""
        return cls(torch.zeros(dim, dtype=torch.float64), radius, radius)

    def including(self, tokens: Float[Tensor, "*batch dim"]) -> "TokenBall":
        """Return the set with the same centre that holds these tokens too; so it can be found pass by pass.

        Raises:
            MeasurementError: a token is not finite.
        """
        rows = float64(tokens).reshape(-1, tokens.shape[-1])
        radius = float(torch.linalg.vector_norm(rows - self.centre.to(rows), dim=1).max()) * _UP
        largest = float(torch.linalg.vector_norm(rows, dim=1).max()) * _UP
        if not (radius < math.inf and largest < math.inf):
            raise MeasurementError("a token is not finite (NaN or infinite); no ball holds it")
        return TokenBall(self.centre, max(self.radius, radius), max(self.largest, largest))


@dataclass(frozen=True)
class AttentionBound:
    """A certified bound on self-attention.

    Attributes:
        value: of the whole component, output projection included.
        form: what `value` is: "heads" the sum over heads, "joint" the output projection times all heads together,
            "linear" the exact constant of attention over a single token.
        heads: for each head, a bound on its output before the output projection: ‖W_V,h‖₂ L_h.
    """

    value: float
    form: Literal["heads", "joint", "linear"]
    heads: tuple[float, ...]


@dataclass(frozen=True)
class _Heads:
    """Checked projections in float64, cut into heads; key and value heads repeated for each query head."""

    q: Float[Tensor, "heads head_dim dim"]
    k: Float[Tensor, "heads head_dim dim"]
    v: Float[Tensor, "heads value_dim dim"]
    o: Float[Tensor, "heads out value_dim"]
    b_q: Float[Tensor, "heads head_dim 1"]
    b_k: Float[Tensor, "heads head_dim 1"]
    scale: float


def attention_bound(
    w_q: Float[Tensor, "query_features dim"],
    w_k: Float[Tensor, "key_features dim"],
    w_v: Float[Tensor, "value_features dim"],
    w_o: Float[Tensor, "out out_features"],
    *,
    heads: int,
    ball: TokenBall,
    tokens: int,
    kv_heads: int | None = None,
    b_q: Float[Tensor, " query_features"] | None = None,
    b_k: Float[Tensor, " key_features"] | None = None,
    scale: float | None = None,
    rotary: bool = False,
) -> AttentionBound:
    """Bound self-attention on a set of tokens, with biases; statement and derivation are in the module's docstring.

    Value and output biases do not matter. A single token attends to itself whatever its logits: then attention is the
    linear map W_O W_V, whose exact norm is returned.

    >>> eye, ball = torch.eye(2), TokenBall.about_origin(2, 1.0)
    >>> bound = attention_bound(0 * eye, eye, eye, 3 * eye, heads=1, ball=ball, tokens=4)
    >>> round(bound.value, 9), bound.form
    (6.0, 'joint')

    Args:
        w_q: (heads·head_dim, dim), as nn.Linear stores it: a head's slice is made of rows.
        w_k: (kv_heads·head_dim, dim).
        w_v: (kv_heads·value_dim, dim).
        w_o: (out, heads·value_dim): a head's slice is made of columns.
        heads: number of query heads.
        ball: the set of tokens.
        tokens: n, per sequence (per window where attention is windowed); the largest where they differ.
        kv_heads: number of key and value heads, by default one per query head.
        b_q: query bias, None if there is none.
        b_k: key bias; it matters for rotary embedding only.
        scale: factor of the logits, by default 1/√head_dim.
        rotary: whether queries and keys are rotated by position.

    Raises:
        ConfigError: shapes that do not fit together, or a set that is none.
        ModelError: a weight is not finite; names the argument.
    """
    cut = _cut(w_q, w_k, w_v, w_o, heads, kv_heads, b_q, b_k, scale)
    _check_set(ball, tokens, w_q.shape[1])
    values = spectral_norms(cut.v)
    if tokens == 1:
        whole = spectral_norm(torch.cat(list(cut.o), 1) @ torch.cat(list(cut.v), 0))
        return AttentionBound(whole * _UP, "linear", tuple(values.tolist()))
    local = _rotary_constants(cut, ball, tokens) if rotary else _constants(cut, ball, tokens)
    summed = float((product_norms(cut.o, cut.v) * local).sum()) * _UP
    joint = spectral_norm(w_o) * float((values * local).square().sum().sqrt()) * _UP
    return AttentionBound(
        min(summed, joint), "heads" if summed <= joint else "joint", tuple((values * local * _UP).tolist())
    )


def attention_bound_paper(
    w_q: Float[Tensor, "query_features dim"],
    w_k: Float[Tensor, "key_features dim"],
    w_v: Float[Tensor, "value_features dim"],
    w_o: Float[Tensor, "out out_features"],
    *,
    heads: int,
    radius: float,
    tokens: int,
    kv_heads: int | None = None,
    scale: float | None = None,
) -> float:
    """Return the published bound, for comparison: Castin, Ablin, Peyré, ICML 2024, Theorem 3.3, summed over heads.

    L = Σ_h ‖W_O,h‖₂ · √3 ‖W_V,h‖₂ (‖A‖₂² R⁴ (4n + 1) + n)^½ on the ball of radius R about the origin. It ignores
    biases, so with a query bias (or a key bias under rotary embedding) it certifies nothing.

    It is never below `attention_bound` on that ball without biases: with u = ‖A‖₂R², L_h = √n + u + √n·u, whose square
    is at most 3(n + u² + n·u²) ≤ 3(n + (4n + 1)u²), and ‖W_O,h W_V,h‖₂ ≤ ‖W_O,h‖₂‖W_V,h‖₂.

    >>> eye = torch.eye(2)
    >>> round(attention_bound_paper(0 * eye, eye, eye, 3 * eye, heads=1, radius=1.0, tokens=3), 9)
    9.0

    Args:
        w_q: as for `attention_bound`, like the other weights.
        w_k: see there.
        w_v: see there.
        w_o: see there.
        heads: number of query heads.
        radius: R, the largest norm of a token.
        tokens: n.
        kv_heads: number of key and value heads.
        scale: factor of the logits, by default 1/√head_dim.

    Raises:
        ConfigError: shapes that do not fit together, or a set that is none.
        ModelError: a weight is not finite; names the argument.
    """
    cut = _cut(w_q, w_k, w_v, w_o, heads, kv_heads, None, None, scale)
    _check_set(TokenBall.about_origin(w_q.shape[1], radius), tokens, w_q.shape[1])
    u = cut.scale * product_norms(cut.q.mT, cut.k) * radius**2
    local = math.sqrt(3) * spectral_norms(cut.v) * (u.square() * (4 * tokens + 1) + tokens).sqrt()
    return float((spectral_norms(cut.o) * local).sum()) * _UP


def _constants(cut: _Heads, ball: TokenBall, tokens: int) -> Float[Tensor, " heads"]:
    """L_h of each head, without rotary embedding."""
    centre = ball.centre.to(cut.q)[:, None]
    logits = cut.scale * product_norms(cut.q.mT, cut.k)  # ‖A‖₂
    lost = _lost(cut.k) * (torch.linalg.matrix_norm(cut.q) * _norm(centre) + _norm(cut.b_q))
    at_centre = cut.scale * (_norm(cut.k.mT @ (cut.q @ centre + cut.b_q)) + lost)  # ‖Aᵀc₀ + b‖
    at_origin = cut.scale * (_norm(cut.k.mT @ cut.b_q) + lost)  # ‖b‖
    towards = torch.minimum(logits * ball.radius + at_centre, logits * ball.largest + at_origin)
    r, root = min(ball.radius, ball.largest), math.sqrt(tokens)
    return root + logits * r**2 + root * r * towards


def _rotary_constants(cut: _Heads, ball: TokenBall, tokens: int) -> Float[Tensor, " heads"]:
    """L_h of each head, with queries and keys rotated by position."""
    centre = ball.centre.to(cut.q)[:, None]
    norms, longest = [], []
    for weight, bias in ((cut.q, cut.b_q), (cut.k, cut.b_k)):
        norm = spectral_norms(weight)
        lost = _lost(weight) * _norm(centre)
        about = _norm(weight @ centre + bias) + lost + norm * ball.radius
        norms.append(norm)
        longest.append(torch.minimum(about, norm * ball.largest + _norm(bias)))
    r, root = min(ball.radius, ball.largest), math.sqrt(tokens)
    return root + r * cut.scale * (norms[0] * longest[1] + root * norms[1] * longest[0])


def _lost(weight: Float[Tensor, "heads features dim"]) -> Float[Tensor, " heads"]:
    """Most that rounding can take away from each head's product with vectors of size 1 (and 2, if it has two steps)."""
    size: Tensor = torch.linalg.matrix_norm(weight)
    return 8 * sum(weight.shape[1:]) * torch.finfo(torch.float64).eps * size


def _norm(column: Float[Tensor, "*batch features 1"]) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(column, dim=(-2, -1))
    return norm


def _cut(
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_o: Tensor,
    heads: int,
    kv_heads: int | None,
    b_q: Tensor | None,
    b_k: Tensor | None,
    scale: float | None,
) -> _Heads:
    """Check the projections and cut them into heads."""
    given = {"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o, "b_q": b_q, "b_k": b_k}
    for name, tensor in given.items():
        if tensor is not None:
            require_finite(name, tensor)
    kv_heads = heads if kv_heads is None else kv_heads
    _check_shapes(w_q, w_k, w_v, w_o, heads, kv_heads)
    for name, bias, weight in (("b_q", b_q, w_q), ("b_k", b_k, w_k)):
        if bias is not None and bias.shape != weight.shape[:1]:
            raise ConfigError(
                f"{name} has shape {tuple(bias.shape)}, expected ({weight.shape[0]},) as {'w' + name[1:]}"
            )
    query_bias = w_q.new_zeros(w_q.shape[0]) if b_q is None else b_q
    key_bias = w_k.new_zeros(w_k.shape[0]) if b_k is None else b_k
    k, v, b_k = (_rows(w, kv_heads).repeat_interleave(heads // kv_heads, 0) for w in (w_k, w_v, key_bias[:, None]))
    return _Heads(
        q=_rows(w_q, heads),
        k=k,
        v=v,
        o=_rows(w_o.T, heads).mT,
        b_q=_rows(query_bias[:, None], heads),
        b_k=b_k,
        scale=1 / math.sqrt(w_q.shape[0] // heads) if scale is None else abs(scale),
    )


def _rows(weight: Float[Tensor, "features dim"], heads: int) -> Float[Tensor, "heads head_features dim"]:
    """Cut a projection's rows into heads."""
    return float64(weight).reshape(heads, -1, weight.shape[1])


def _check_shapes(w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, heads: int, kv_heads: int) -> None:
    shapes = ", ".join(
        f"{name} {tuple(w.shape)}" for name, w in (("w_q", w_q), ("w_k", w_k), ("w_v", w_v), ("w_o", w_o))
    )
    got = f"; got {shapes}, {heads} heads, {kv_heads} key/value heads"
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise ConfigError(f"the number of heads must be a multiple of that of key/value heads{got}")
    if len({w.shape[1] for w in (w_q, w_k, w_v)}) > 1:
        raise ConfigError(f"w_q, w_k and w_v must take the same tokens (second axis){got}")
    if w_q.shape[0] % heads or w_k.shape[0] * heads != w_q.shape[0] * kv_heads:
        raise ConfigError(f"queries and keys must have the same features per head (first axis over heads){got}")
    if w_v.shape[0] % kv_heads or w_v.shape[0] * heads != w_o.shape[1] * kv_heads:
        raise ConfigError(f"w_o must take the features of all heads' values (second axis){got}")


def _check_set(ball: TokenBall, tokens: int, dim: int) -> None:
    if tokens < 1:
        raise ConfigError(f"a sequence has at least one token, got tokens={tokens}")
    if ball.centre.shape != (dim,):
        raise ConfigError(f"the ball's centre has shape {tuple(ball.centre.shape)}, the tokens have {dim} features")
    require_finite("the ball's centre", ball.centre)
    if not (0 <= ball.radius < math.inf and 0 <= ball.largest < math.inf):
        raise ConfigError(f"a ball needs finite sizes of at least 0, got {ball.radius} and largest {ball.largest}")
