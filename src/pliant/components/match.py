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
    ending = row.blocks.split(".")
    towers: dict[str, list[str]] = defaultdict(list)
    for path, module in model.named_modules():
        names = path.split(".")
        if not isinstance(module, nn.ModuleList | nn.Sequential) or len(names) < len(ending) or not len(module):
            continue
        tail = names[len(names) - len(ending) :]
        if not all(fnmatchcase(n, e) for n, e in zip(tail, ending, strict=True)):
            continue
        tower = ".".join(names[: len(names) - len(ending)])
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
    for name, _ in model.named_parameters():
        prefix = next((p for p in inside if name.startswith(p)), None)
        if prefix is None:
            owned[_owner_outside(name, row), None].append(name)
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


def _owner_outside(name: str, row: Family) -> Role:
    """Return the role of a parameter outside the blocks: the entry whose names stand in its path.

    An entry matches whole names anywhere in the path (`embeddings` in `vit.embeddings.cls_token`); where several
    match, the one that starts leftmost decides, then the longest (`pooler.layernorm` before `layernorm`).
    """
    found: list[tuple[int, int, Role]] = []
    for role, field in _OUTSIDE:
        for entry in getattr(row, field):
            if (at := f".{name}.".find(f".{entry}.")) >= 0:
                found.append((at, -len(entry), role))
    return min(found)[2] if found else "other"


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
    tried = f"the row {family.name!r}" if family is not None else f"any of the {len(FAMILIES)} known families"
    lists = "\n".join(_repeated_lists(model)) or "  (none)"
    return (
        f"the blocks of {type(model).__name__} were not found by {tried}. Its lists of repeated modules are:\n{lists}\n"
        "If one of them holds transformer blocks, say where their parts are and pass it as family=:\n"
        '  pliant.Family(name="mine", blocks="<end of the list\'s path>", ln1="<norm>", mha="<attention>", '
        'ln2="<norm>", fc1=("<first linear>",), fc2="<second linear>")'
    )
