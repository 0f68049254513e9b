"""A component of a model: a role in a block, the parameters it owns, and where it is measured."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pandas as pd
from torch import nn

from pliant.components.families import Family
from pliant.errors import AnatomyError
from pliant.terms import ROLES, Role, component_id


@dataclass(frozen=True)
class Component:
    """One role in one block (or outside the blocks).

    Attributes:
        role: what the component does.
        block: index of its block over the whole depth, None outside the blocks.
        modules: full names of the modules at whose boundary it is measured. `fc1` of a gated feed-forward part
            has two that share their input; `mha` of a post-norm block has two in sequence; empty if the component
            is never called as such (`emb`, `other`).
        parameters: full names of the parameters it owns, as `named_parameters()` gives them.
    """

    role: Role
    block: int | None
    modules: tuple[str, ...]
    parameters: tuple[str, ...]

    @property
    def id(self) -> str:
        """The component's name in tables and messages, such as `block03.mha`."""
        return component_id(self.role, self.block)


@dataclass(frozen=True)
class Anatomy:
    """All components of a model; every parameter belongs to exactly one of them.

    Attributes:
        model: the model that was taken apart, unchanged.
        family: the row of the table of families that it was found by.
        components: in the order of a forward pass; what is outside the blocks comes first (`emb`) or last.
        blocks: full names of the block modules, in order of depth.
        tied: groups of parameter names that are one tensor; the first name of each is the one that counts.
    """

    model: nn.Module = field(repr=False)
    family: Family
    components: tuple[Component, ...]
    blocks: tuple[str, ...]
    tied: tuple[tuple[str, ...], ...]

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles that own parameters in this model, in canonical order."""
        present = {c.role for c in self.components if c.parameters}
        return tuple(r for r in ROLES if r in present)

    @property
    def frame(self) -> pd.DataFrame:
        """One row per component: component, role, block, tensors, parameters, share (of all parameters)."""
        sizes = {name: p.numel() for name, p in self.model.named_parameters()}
        total = sum(sizes.values())
        rows = [
            {
                "component": c.id,
                "role": c.role,
                "block": c.block,
                "tensors": len(c.parameters),
                "parameters": sum(sizes[p] for p in c.parameters),
            }
            for c in self.components
            if c.parameters
        ]
        frame = pd.DataFrame(rows).astype({"block": "Int64"})
        return frame.assign(share=frame["parameters"] / total)

    def of(self, role: Role) -> tuple[Component, ...]:
        """Return the components of one role, in order of depth."""
        return tuple(c for c in self.components if c.role == role)

    def parameters(self, roles: Iterable[Role]) -> dict[str, nn.Parameter]:
        """Return the parameters that these roles own, by full name.

        Raises:
            AnatomyError: the model has no parameters of one of the roles.
        """
        wanted = set(roles)
        if missing := wanted - set(self.roles) - {"other", "layerscale", "emb", "final_norm", "head"}:
            raise AnatomyError(
                f"{type(self.model).__name__} has no parameters of role {', '.join(sorted(missing))}; "
                f"it has {', '.join(self.roles)}. Choose among these."
            )
        owned = {name for c in self.components if c.role in wanted for name in c.parameters}
        return {name: p for name, p in self.model.named_parameters() if name in owned}

    def count(self, roles: Iterable[Role]) -> int:
        """Count the parameters (single numbers, not tensors) that these roles own."""
        return sum(p.numel() for p in self.parameters(roles).values())

    def module(self, name: str) -> nn.Module:
        """Return the model's module of this full name."""
        return self.model.get_submodule(name)
