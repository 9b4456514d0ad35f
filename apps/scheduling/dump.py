"""A pass as a file: what the planner was told, by which policy, and what it decided; and back.

The dataclasses of engine.facts are written and read by reflection over their fields and annotations, so a field that
is added there is dumped without a change here. Each class's field names stand once, in `classes`; its objects are
rows of values in that order. A reader fills a field that the file does not know with its default, and refuses a field
or a class that it does not know itself: it could not replay what that field decided. Shapes are written once each and
referred to by number, because the planner remembers by identity what did not fit. Numbers come back bit for bit.

Pure: no Django, no clock.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from math import inf, isfinite, isnan, nan
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from apps.scheduling.engine import facts
from apps.scheduling.engine.facts import Plan, Policy, Shape, Snapshot

FORMAT: Final = "switchyard-pass"
VERSION: Final = 1
MOST_BYTES: Final = 2**30  # of a file when unpacked; a small file can unpack to anything

_SHARED: Final = (Shape,)  # classes of which one object stays one object
_NOT_FINITE: Final = {"inf": inf, "-inf": -inf, "nan": nan}
_DTYPES: Final = {"bool": np.bool_, "int64": np.int64, "float64": np.float64}

Coder = Callable[[Any], Any]


class BadDump(Exception):
    """This is no dump that this version can replay; says where and why."""


@dataclass(frozen=True, eq=False)
class Dump:
    """One pass: what went in, and what came out."""

    snapshot: Snapshot
    policy: Policy
    plan: Plan
    about: Mapping[str, Any]  # id of the pass, its instant, the faults the checker found
    is_anonymous: bool = False  # names of jobs, and sentences that hold them, were left out


# In and out --------------------------------------------------------------------------------------------------------


def to_bytes(dump: Dump) -> bytes:
    """The dump as compressed JSON. Equal dumps give equal bytes."""
    text = json.dumps(to_json(dump), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return gzip.compress(text.encode(), compresslevel=6, mtime=0)


def from_bytes(raw: bytes) -> Dump:
    """Read a dump, compressed or not; raises BadDump."""
    try:
        text = _unpacked(raw) if raw[:2] == b"\x1f\x8b" else raw
        data = json.loads(text, parse_constant=_no_constant)
    except (OSError, EOFError, zlib.error) as error:
        raise BadDump(f"cannot be unpacked: {error}") from None
    except (ValueError, RecursionError) as error:
        raise BadDump(f"is not JSON: {error}") from None
    return from_json(data)


def _unpacked(raw: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    text = unpacker.decompress(raw, MOST_BYTES)
    if not unpacker.eof:
        is_cut = not unpacker.unconsumed_tail
        raise BadDump("is cut off" if is_cut else f"unpacks to more than {MOST_BYTES} bytes")
    return text


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def to_json(dump: Dump) -> dict[str, Any]:
    """The dump as plain JSON values."""
    writer = _Writer()
    parts = {
        "snapshot": writer.coder(Snapshot)(dump.snapshot),
        "policy": writer.coder(Policy)(dump.policy),
        "plan": writer.coder(Plan)(dump.plan),
        "about": writer.coder(Mapping[str, Any])(dump.about),
    }
    return {
        "format": FORMAT,
        "version": VERSION,
        "is_anonymous": dump.is_anonymous,
        "classes": writer.classes,
        "shared": writer.shared,
        **parts,
    }


def from_json(data: Any) -> Dump:
    """A dump from plain JSON values; raises BadDump."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise BadDump(f'is no dump of a pass: "format" is not "{FORMAT}"')
    if data.get("version") != VERSION:
        raise BadDump(f"version: is {data.get('version')!r}; this program reads version {VERSION}")
    parts = {"snapshot", "policy", "plan", "about", "classes", "shared", "is_anonymous", "format", "version"}
    for name in sorted(parts ^ data.keys()):
        raise BadDump(f"{name}: is {'missing' if name in parts else 'not known to this version'}")
    reader = _Reader(data["classes"], data["shared"])
    return Dump(
        snapshot=reader.read(Snapshot, data["snapshot"], "snapshot"),
        policy=reader.read(Policy, data["policy"], "policy"),
        plan=reader.read(Plan, data["plan"], "plan"),
        about=reader.read(Mapping[str, Any], data["about"], "about"),
        is_anonymous=reader.read(bool, data["is_anonymous"], "is_anonymous"),
    )


# Without names -----------------------------------------------------------------------------------------------------


def anonymous(dump: Dump) -> Dump:
    """The dump without what people wrote about their jobs, and their own names: names, and sentences and facts that
    may hold names.

    Names decide nothing, so the planner decides the same on it.
    """

    def nameless(gang: facts.Gang) -> facts.Gang:
        waits_for = tuple(f"dependency {number}" for number in range(1, len(gang.waits_for) + 1))
        return replace(gang, name=f"job {gang.id}", waits_for=waits_for)

    members = enumerate(dump.snapshot.members, 1)
    snapshot = replace(
        dump.snapshot,
        members=tuple(replace(member, name=f"member {number}") for number, member in members),
        queue=tuple(nameless(gang) for gang in dump.snapshot.queue),
        running=tuple(replace(run, gang=nameless(run.gang)) for run in dump.snapshot.running),
    )
    about = {key: value for key, value in dump.about.items() if key != "faults"}
    if "faults" in dump.about:
        about["faults"] = [
            {key: value for key, value in fault.items() if key != "message"} for fault in dump.about["faults"]
        ]
    return Dump(snapshot, dump.policy, _without_words(dump.plan), about, is_anonymous=True)


def _without_words(plan: Plan) -> Plan:
    return replace(
        plan,
        starts=tuple(replace(start, why={}) for start in plan.starts),
        waits=tuple(replace(wait, sentence="", facts={}) for wait in plan.waits),
    )


# Same or not -------------------------------------------------------------------------------------------------------

_MOST_DIFFERENCES: Final = 20


def differences(dump: Dump, plan: Plan) -> list[str]:
    """In what another plan for the same snapshot differs from the dump's; empty: in nothing."""
    one, other = dump.plan, _without_words(plan) if dump.is_anonymous else plan
    found: list[str] = []
    for field in fields(Plan):
        was, now = getattr(one, field.name), getattr(other, field.name)
        if _plain_text(was) == _plain_text(now):
            continue
        if not (isinstance(was, tuple) and isinstance(now, tuple)):
            found.append(f"{field.name}: was {was!r}, is {now!r}")
            continue
        if len(was) != len(now):
            found.append(f"{field.name}: were {len(was)}, are {len(now)}")
        for place, (mine, yours) in enumerate(zip(was, now, strict=False)):
            if _plain_text(mine) != _plain_text(yours):
                found.append(f"{field.name}[{place}]: was {mine!r}, is {yours!r}")
                break
    return found[:_MOST_DIFFERENCES]


def _plain_text(value: Any) -> str:
    return json.dumps(_Writer().anything(value), allow_nan=False)


# Reflection --------------------------------------------------------------------------------------------------------


@cache
def _known() -> Mapping[str, type]:
    """The dataclasses of the engine, by name."""
    return {name: cls for name, cls in vars(facts).items() if isinstance(cls, type) and is_dataclass(cls)}


@cache
def _hints(cls: type) -> Mapping[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls) if field.init}


def _undumpable(hint: Any) -> TypeError:
    return TypeError(f"A field of type {hint} cannot be dumped; say in scheduling.dump how.")


def _branches(hint: Any) -> tuple[Any, ...] | None:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else None


def _is_scalar(hint: Any) -> bool:
    return hint in (bool, int, float, str, NoneType) or get_origin(hint) is Literal


def _the_one_beside_none(branches: tuple[Any, ...], hint: Any) -> Any:
    """What a union other than of scalars may be: one type, or nothing."""
    others = [branch for branch in branches if branch is not NoneType]
    if len(others) != 1:
        raise _undumpable(hint)
    return others[0]


class _Coders:
    """What turns values of a type into plain ones, or back; made once a type."""

    def __init__(self) -> None:
        self._coders: dict[Any, Coder] = {}

    def coder(self, hint: Any) -> Coder:
        made = self._coders.get(hint)
        if made is None:
            # A class may refer to itself: stand in for it until it is made.
            self._coders[hint] = lambda value: self._coders[hint](value)
            made = self._coders[hint] = self._make(hint)
        return made

    def _make(self, hint: Any) -> Coder:
        raise NotImplementedError


class _Writer(_Coders):
    """Turns values into JSON by the annotations of their fields."""

    def __init__(self) -> None:
        self.classes: dict[str, list[str]] = {}
        self.shared: dict[str, list[Any]] = {}
        self._numbers: dict[int, tuple[int, Any]] = {}  # the object too: an id lives as long as its object
        super().__init__()

    def _make(self, hint: Any) -> Coder:
        if hint is Any:
            return self.anything
        if _is_scalar(hint):
            return _scalar
        if branches := _branches(hint):
            if all(_is_scalar(branch) for branch in branches):
                return _scalar
            some = self.coder(_the_one_beside_none(branches, hint))
            return lambda value: None if value is None else some(value)
        if isinstance(hint, type) and is_dataclass(hint):
            return self._shared_object(hint) if hint in _SHARED else self._object(hint)
        origin, args = get_origin(hint), get_args(hint)
        if origin is np.ndarray:
            return _array
        if origin is tuple:
            if len(args) == 2 and args[1] is Ellipsis:
                each = self.coder(args[0])
                return lambda value: [each(item) for item in value]
            parts = [self.coder(arg) for arg in args]
            return lambda value: [part(item) for part, item in zip(parts, value, strict=True)]
        if isinstance(origin, type) and issubclass(origin, Mapping):
            of_key, of_value = (self.coder(arg) for arg in args)
            return lambda value: [[of_key(key), of_value(item)] for key, item in value.items()]
        if isinstance(origin, type) and issubclass(origin, AbstractSet):
            member = self.coder(args[0])
            return lambda value: sorted(member(item) for item in value)
        raise _undumpable(hint)

    def _object(self, cls: type) -> Coder:
        if cls.__name__ not in self.classes:
            self.classes[cls.__name__] = list(_hints(cls))
        parts = [(name, self.coder(hint)) for name, hint in _hints(cls).items()]
        return lambda value: [part(getattr(value, name)) for name, part in parts]

    def _shared_object(self, cls: type) -> Coder:
        rows = self.shared.setdefault(cls.__name__, [])
        write = self._object(cls)

        def number_of(value: Any) -> int:
            known = self._numbers.get(id(value))
            if known is None:
                known = self._numbers[id(value)] = (len(rows), value)
                rows.append(write(value))
            return known[0]

        return number_of

    def anything(self, value: Any) -> Any:
        """A value of which no annotation says what it is: it says so itself."""
        value = value.item() if isinstance(value, np.generic) else value
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if isfinite(value) else {"float": _scalar(value)}
        if isinstance(value, Mapping):
            return {"map": [[self.anything(key), self.anything(item)] for key, item in value.items()]}
        if isinstance(value, tuple):
            return {"tuple": [self.anything(item) for item in value]}
        if isinstance(value, list):
            return [self.anything(item) for item in value]
        if isinstance(value, frozenset | set):
            return {"set": sorted((self.anything(item) for item in value), key=json.dumps)}
        if isinstance(value, np.ndarray):
            return {"array": _array(value)}
        if type(value) in _known().values():
            return {type(value).__name__: self.coder(type(value))(value)}
        raise _undumpable(type(value))


def _scalar(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and not isfinite(value):
        return "nan" if isnan(value) else "inf" if value > 0 else "-inf"
    return value


def _array(value: Any) -> dict[str, Any]:
    if value.dtype.name not in _DTYPES:
        raise _undumpable(f"array of {value.dtype}")
    flat = value.ravel().tolist()
    if value.dtype == np.float64 and not np.isfinite(value).all():
        flat = [_scalar(item) for item in flat]
    return {"dtype": value.dtype.name, "shape": list(value.shape), "values": flat}


class _Reader(_Coders):
    """Turns JSON back into values by the annotations of their fields."""

    def __init__(self, classes: Any, shared: Any) -> None:
        self._columns = self._known_columns(classes)
        super().__init__()
        self._objects: dict[str, list[Any]] = {}
        if not isinstance(shared, dict):
            raise BadDump("shared: must be an object")
        for name, rows in shared.items():
            if name not in {cls.__name__ for cls in _SHARED}:
                raise BadDump(f"shared.{name}: is not known to this version")
            make = self._object(_known()[name])
            self._objects[name] = self._list(rows, f"shared.{name}", make)

    def read(self, hint: Any, value: Any, where: str) -> Any:
        try:
            return self.coder(hint)(value)
        except BadDump as error:
            raise BadDump(f"{where}: {error}") from None

    def _list(self, rows: Any, where: str, make: Coder) -> list[Any]:
        try:
            return [make(row) for row in _of(list, rows)]
        except BadDump as error:
            raise BadDump(f"{where}: {error}") from None

    @staticmethod
    def _known_columns(classes: Any) -> dict[str, list[str]]:
        """The fields that the file has, by class; none may be unknown, for what it decided would be lost."""
        found: dict[str, list[str]] = {}
        for name, columns in _of(dict, classes).items():
            cls = _known().get(name)
            if cls is None:
                raise BadDump(f"classes.{name}: is not known to this version")
            hints = _hints(cls)
            for column in _of(list, columns):
                if column not in hints:
                    raise BadDump(f"classes.{name}: {column!r} is not known to this version")
            if len(set(columns)) != len(columns):
                raise BadDump(f"classes.{name}: names a field twice")
            needed = {
                field.name for field in fields(cls) if field.default is field.default_factory is MISSING
            }
            for column in sorted(needed - set(columns)):
                raise BadDump(f"classes.{name}: {column!r} is missing")
            found[name] = columns
        return found

    def _make(self, hint: Any) -> Coder:
        if hint is Any:
            return self.anything
        if _is_scalar(hint):
            return _scalar_reader((hint,))
        if branches := _branches(hint):
            if all(_is_scalar(branch) for branch in branches):
                return _scalar_reader(branches)
            some = self.coder(_the_one_beside_none(branches, hint))
            return lambda value: None if value is None else some(value)
        if isinstance(hint, type) and is_dataclass(hint):
            return self._shared_object(hint) if hint in _SHARED else self._object(hint)
        origin, args = get_origin(hint), get_args(hint)
        if origin is np.ndarray:
            return _array_reader(np.dtype(get_args(args[1])[0]).name)
        if origin is tuple:
            if len(args) == 2 and args[1] is Ellipsis:
                each = self.coder(args[0])
                return lambda value: tuple([each(item) for item in _of(list, value)])
            parts = [self.coder(arg) for arg in args]
            return lambda value: tuple(
                part(item) for part, item in zip(parts, _of(list, value, len(parts)), strict=True)
            )
        if isinstance(origin, type) and issubclass(origin, Mapping):
            of_key, of_value = (self.coder(arg) for arg in args)
            return lambda value: {
                of_key(key): of_value(item) for key, item in (_of(list, pair, 2) for pair in _of(list, value))
            }
        if isinstance(origin, type) and issubclass(origin, AbstractSet):
            member = self.coder(args[0])
            return lambda value: frozenset(member(item) for item in _of(list, value))
        raise _undumpable(hint)

    def _object(self, cls: type) -> Coder:
        columns = self._columns.get(cls.__name__)
        if columns is None:
            # No object of this class was dumped; one that turns up after all has no columns to be read by.
            def unlisted(value: Any) -> Any:
                raise BadDump(f"classes.{cls.__name__}: is missing")

            return unlisted
        hints = _hints(cls)
        parts = [(name, self.coder(hints[name])) for name in columns]

        def make(value: Any) -> Any:
            read = {}
            for (name, part), item in zip(parts, _of(list, value, len(parts)), strict=True):
                try:
                    read[name] = part(item)
                except BadDump as error:
                    raise BadDump(f"{cls.__name__}.{name}: {error}") from None
            return cls(**read)

        return make

    def _shared_object(self, cls: type) -> Coder:
        def at(value: Any) -> Any:
            objects = self._objects.get(cls.__name__, [])
            number = _of(int, value)
            if not 0 <= number < len(objects):
                raise BadDump(f"there is no {cls.__name__} {number}")
            return objects[number]

        return at

    def anything(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list):
            return [self.anything(item) for item in value]
        if not isinstance(value, dict) or len(value) != 1:
            raise BadDump("is no value that was dumped")
        ((kind, inner),) = value.items()
        match kind:
            case "float":
                return _scalar_reader((float,))(inner)
            case "map":
                pairs = [_of(list, pair, 2) for pair in _of(list, inner)]
                return {self.anything(key): self.anything(item) for key, item in pairs}
            case "tuple":
                return tuple(self.anything(item) for item in _of(list, inner))
            case "set":
                return frozenset(self.anything(item) for item in _of(list, inner))
            case "array":
                return _array_reader(None)(inner)
        if kind not in _known():
            raise BadDump(f"{kind!r} is not known to this version")
        return self.coder(_known()[kind])(inner)


def _of(wanted: Any, value: Any, length: int | None = None) -> Any:
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise BadDump(f"must be of type {wanted.__name__}, not {type(value).__name__}")
    if length is not None and len(value) != length:
        raise BadDump(f"must have {length} values, not {len(value)}")
    return value


def _scalar_reader(hints: tuple[Any, ...]) -> Coder:
    """Reads what one of these types may be; a float is also written as a whole number, or as a word."""
    words = {word for hint in hints if get_origin(hint) is Literal for word in get_args(hint)}
    types = {hint for hint in hints if get_origin(hint) is not Literal}

    def read(value: Any) -> Any:
        if (
            type(value) in types
            or (float in types and type(value) is int)
            or (value is None and NoneType in types)
        ):
            return value
        if isinstance(value, str):
            if value in words:
                return value
            if float in types and value in _NOT_FINITE:
                return _NOT_FINITE[value]
        raise BadDump(f"must be of type {' or '.join(str(getattr(h, '__name__', h)) for h in hints)}")

    return read


def _array_reader(wanted: str | None) -> Coder:
    def read(value: Any) -> Any:
        if not isinstance(value, dict) or set(value) != {"dtype", "shape", "values"}:
            raise BadDump("must be an array with dtype, shape and values")
        name, values = value["dtype"], _of(list, value["values"])
        if name not in _DTYPES or (wanted is not None and name != wanted):
            raise BadDump(f"must be an array of {wanted or ' or '.join(_DTYPES)}, not of {name}")
        allowed = {"bool": (bool,), "int64": (int,), "float64": (float, int, str)}[name]
        if any(type(item) not in allowed for item in values):
            raise BadDump(f"holds something that is no {name}")
        if name == "float64":
            one = _scalar_reader((float,))
            values = [one(item) if type(item) is str else item for item in values]
        try:
            return np.array(values, dtype=_DTYPES[name]).reshape(_of(list, value["shape"]))
        except (ValueError, OverflowError, TypeError) as error:
            raise BadDump(f"is no array: {error}") from None

    return read
