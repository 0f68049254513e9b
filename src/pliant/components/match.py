"""Finding the components of a model, and proving that every parameter is accounted for."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from torch import nn

from pliant.components.component import Anatomy, Component
from pliant.components.families import FAMILIES, Family
from pliant.errors import AnatomyError
from pliant.terms import ROLES, Role

_OUTSIDE: tuple[tuple[Role, str], ...] = (
    ("emb", "emb"),
    ("final_norm", "final_norm"),
    ("head", "head"),
    ("mha", "mha_shared"),
)


def find_components(model: nn.Module, *, family: Family | None = None) -> Anatomy:
    """Take a model apart into its components.

    Args:
        model: any model with a list of transformer blocks; it is not changed.
        family: where the parts are; by default the first row of `FAMILIES` that fits.

    Raises:
        AnatomyError: no row fits (the message lists the repeated lists of the module tree and how to write a row),
            or two towers of blocks fit at once.
    """
    if hasattr(model, "_orig_mod") or any(m._compiled_call_impl is not None for m in model.modules()):
        raise AnatomyError(
            f"got a model compiled by torch.compile ({type(model).__name__}), whose inner modules cannot be observed; "
            "pass the model as it was before compilation (compiled._orig_mod, or load it again after model.compile()) "
            "and compile afterwards."
        )
    for row in (family,) if family is not None else FAMILIES:
        if names := _block_names(model, row):
            return _take_apart(model, row, names)
    raise AnatomyError(_nothing_fits(model, family))


def _has(module: nn.Module, path: str) -> bool:
    """Tell whether a dotted path leads to a module or parameter."""
    *parents, last = path.split(".")
    for name in parents:
        child = module._modules.get(name)
        if child is None:
            return False
        module = child
    return getattr(module, last, None) is not None


def _existing(module: nn.Module, names: str) -> str | None:
    """Return the first of the alternatives `a|b` that exists in the module."""
    return next((n for n in names.split("|") if _has(module, n)), None)


def _parts(row: Family) -> dict[Role, tuple[str, ...]]:
    return {"ln1": (row.ln1,), "mha": tuple(row.mha.split(">")), "ln2": (row.ln2,), "fc1": row.fc1, "fc2": (row.fc2,)}


def _fits(block: nn.Module, row: Family) -> bool:
    if any(_has(block, name) for name in row.absent):
        return False
    return all(_existing(block, name) is not None for names in _parts(row).values() for name in names)


def _block_names(model: nn.Module, row: Family) -> tuple[str, ...]:
    """Return the full names of the blocks that a row finds, in order of depth; empty if it does not fit."""
    towers: dict[str, list[str]] = defaultdict(list)
    for path, module in model.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential) or not len(module) or not _ends_with(path, row.blocks):
            continue
        tower = _tower(path, row.blocks)
        owner = type(model.get_submodule(tower)).__name__
        if row.owners and owner not in row.owners:
            continue
        if all(_fits(block, row) for block in module):
            towers[tower] += [f"{path}.{key}" for key, _ in module.named_children()]
    if len(towers) > 1:
        raise AnatomyError(
            f"{type(model).__name__} has {len(towers)} towers of blocks that fit {row.name!r}: "
            f"{', '.join(repr(t) for t in towers)}. Pass one of them, for instance model.get_submodule("
            f"{next(iter(towers))!r})."
        )
    return tuple(next(iter(towers.values()), ()))


def _take_apart(model: nn.Module, row: Family, blocks: tuple[str, ...]) -> Anatomy:
    owned: dict[tuple[Role, int | None], list[str]] = defaultdict(list)
    inside = {f"{name}.": i for i, name in enumerate(blocks)}
    owners = [_owners_in_block(model.get_submodule(name), row) for name in blocks]
    holders = _holders(blocks[0], row)
    for name, _ in model.named_parameters():
        prefix = next((p for p in inside if name.startswith(p)), None)
        if prefix is None:
            owned[_owner_outside(name, row, holders), None].append(name)
        else:
            block = inside[prefix]
            owned[_owner(name.removeprefix(prefix), owners[block]), block].append(name)
    components = tuple(_components(model, row, blocks, owned))
    return Anatomy(model=model, family=row, components=components, blocks=blocks, tied=_tied(model))


def _owners_in_block(block: nn.Module, row: Family) -> list[tuple[str, Role]]:
    """Pair each path of a block with its role, longest path first, so that the most specific one decides."""
    pairs: list[tuple[str, Role]] = [
        (found, role)
        for role, names in _parts(row).items()
        for name in names
        if (found := _existing(block, name)) is not None
    ]
    pairs += [(name, "mha") for name in row.mha_also] + [(name, "layerscale") for name in row.layerscale]
    return sorted(pairs, key=lambda pair: -len(pair[0]))


def _owner(name: str, owners: list[tuple[str, Role]]) -> Role:
    return next((role for path, role in owners if name == path or name.startswith(f"{path}.")), "other")


def _owner_outside(name: str, row: Family, holders: tuple[str, ...]) -> Role:
    """Return the role of a parameter outside the blocks.

    An entry of the row is a path from one of the `holders`: `layernorm` names `vit.layernorm` for blocks under `vit`,
    and never a norm inside another part, as that of a pooler or of a step between stages.
    """
    for holder in holders:
        inner = name.removeprefix(holder)
        if not name.startswith(holder):
            continue
        for role, field in _OUTSIDE:
            if any(f"{inner}.".startswith(f"{entry}.") for entry in getattr(row, field)):
                return role
    return "other"


def _holders(block: str, row: Family) -> tuple[str, ...]:
    """Return the prefixes of the modules around the list of blocks, innermost first, the model itself last."""
    names = block.split(".")[: -1 - len(row.blocks.split("."))]
    return tuple("".join(f"{n}." for n in names[:depth]) for depth in range(len(names), -1, -1))


def _components(
    model: nn.Module, row: Family, blocks: tuple[str, ...], owned: dict[tuple[Role, int | None], list[str]]
) -> Iterator[Component]:
    def outside(*roles: Role) -> Iterator[Component]:
        for role in roles:
            if names := owned.get((role, None)):
                yield Component(role, None, (), tuple(names))

    yield from outside("emb", "mha")
    parts = _parts(row)
    for i, name in enumerate(blocks):
        block = model.get_submodule(name)
        for role in ROLES:
            modules = tuple(f"{name}.{_existing(block, part)}" for part in parts.get(role, ()))
            if modules or owned.get((role, i)):
                yield Component(role, i, modules, tuple(owned.get((role, i), ())))
    yield from outside("other", "final_norm", "head")


def _tied(model: nn.Module) -> tuple[tuple[str, ...], ...]:
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return tuple(tuple(group) for group in names.values() if len(group) > 1)


def _repeated_lists(model: nn.Module) -> Iterable[str]:
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 1:
            children = [type(child).__name__ for child in module]
            if len(set(children)) == 1:
                parts = ", ".join(name for name, _ in module[0].named_modules() if name)
                yield f"  {path} ({len(module)} x {children[0]}): {parts or 'no inner modules'}"


def _nothing_fits(model: nn.Module, family: Family | None) -> str:
    tried = f"any of the {len(FAMILIES)} known families" if family is None else f"the row {family.name!r}"
    lists = "\n".join(_repeated_lists(model)) or "  (none)"
    return (
        f"the blocks of {type(model).__name__} were not found by {tried}{_why(model, family)}. "
        f"Its lists of repeated modules are:\n{lists}\n"
        "If one of them holds transformer blocks, say where their parts are and pass it as family=:\n"
        '  pliant.Family(name="mine", blocks="<end of the list\'s path>", ln1="<norm>", mha="<attention>", '
        'ln2="<norm>", fc1=("<first linear>",), fc2="<second linear>")'
    )


def _why(model: nn.Module, row: Family | None) -> str:
    """Say which of its statements a user's row fails by; nothing for the whole table."""
    if row is None:
        return ""
    lists = [(path, m) for path, m in model.named_modules() if isinstance(m, nn.ModuleList | nn.Sequential) and len(m)]
    if not (ending := [(path, m) for path, m in lists if _ends_with(path, row.blocks)]):
        return f": no list of modules has a path that ends in {row.blocks!r}"
    path, blocks = ending[0]
    if row.owners and (owner := type(model.get_submodule(_tower(path, row.blocks))).__name__) not in row.owners:
        return f": {path!r} is held by a {owner}, and the row is for {' and '.join(row.owners)}"
    for i, block in enumerate(blocks):
        if unwanted := [n for n in row.absent if _has(block, n)]:
            return f": {path}.{i} has {unwanted[0]!r}, which the row says must be absent"
        for role, names in _parts(row).items():
            if missing := [n for n in names if _existing(block, n) is None]:
                return f": {path}.{i} ({type(block).__name__}) has no {missing[0]!r} (its {role})"
    return ""


def _ends_with(path: str, ending: str) -> bool:
    names, ends = path.split("."), ending.split(".")
    return len(names) >= len(ends) and all(
        fnmatchcase(n, e) for n, e in zip(names[len(names) - len(ends) :], ends, strict=True)
    )


def _tower(path: str, ending: str) -> str:
    """Return the path of the module that holds the list (or the stages) of blocks."""
    return ".".join(path.split(".")[: -len(ending.split("."))])
