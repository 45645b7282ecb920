"""The known set of one resource type: who is known, in which version, and who is gone.

What is common to pods, slices, claims and nodes stands here: identity by uid, versions that only rise, late and repeated
frames, name reuse, deletion and tombstones (reference faults, W1, W4, W17, W21). What an object means stands in the modules
beside it. Nothing here may depend on the order of a list.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec

from ingest.diff.recalling import Told
from ingest.observe.fields import Identity, read_identity
from sickbay.errors import ObjectError
from sickbay.facts import Fact

#: ``(epoch, resourceVersion)``, compared within one resource type only.
Version: TypeAlias = tuple[int, int]
Outcome: TypeAlias = Literal["added", "changed", "same", "late"]

#: resourceVersions remembered for each object, so that a replayed stretch of a watch is told from late evidence. Beyond it a
#: replay repeats facts, whose derived ids make them repeats everywhere.
_SEEN_MAX: Final = 8
#: Deleted objects remembered for each resource type, oldest forgotten first: a uid never comes back, its frames may.
_GONE_MAX: Final = 20_000


class Moment(msgspec.Struct, frozen=True, gc=False):
    """When and as of which version something is applied."""

    at_ms: int
    epoch: int
    #: The version of the frame or LIST that is applied.
    rv: int
    #: When this resource type was last heard of before: what vanished since, vanished after that.
    heard_ms: int


class Known:
    """One known object; subclasses add what they compare."""

    __slots__ = ("epoch", "mark", "name", "namespace", "own_rv", "rv", "seen", "uid")

    def __init__(self, identity: Identity, epoch: int, mark: bytes) -> None:
        self.uid = identity.uid
        self.namespace = identity.namespace
        self.name = identity.name
        self.epoch = epoch
        self.rv = identity.rv
        #: The version that the object has itself: older than ``rv`` where a LIST told another content under it.
        self.own_rv = identity.rv
        #: Fingerprint of the raw parts that are read.
        self.mark = mark
        self.seen: tuple[int, ...] = ()

    @property
    def version(self) -> Version:
        """The version that the known set holds."""
        return (self.epoch, self.rv)

    def advance(self, epoch: int, rv: int, own_rv: int | None = None) -> None:
        """Move to a newer version."""
        self.seen = (*self.seen, self.rv)[-_SEEN_MAX:] if epoch == self.epoch else ()
        self.epoch, self.rv = epoch, rv
        self.own_rv = rv if own_rv is None else own_rv


class _Gone(msgspec.Struct, frozen=True, gc=False):
    """A tombstone: the version of the deletion, and the versions seen before it."""

    epoch: int
    rv: int
    seen: tuple[int, ...]
    #: Known by what was told: a claim that left one node, or a Pod that was bound, was told gone there under a version that it
    #: still has, and a stop may have cut off the rest. So what is read at that very version is alive.
    recalled: bool = False

    def covers(self, version: Version) -> bool:
        """Whether the object was gone under that version."""
        return version < (self.epoch, self.rv) or (version == (self.epoch, self.rv) and not self.recalled)


K = TypeVar("K", bound=Known)
#: What an observer returns.
Seen = TypeVar("Seen")


class Collection(ABC, Generic[K, Seen]):
    """The known objects of one resource type."""

    kind: ClassVar[str]
    namespaced: ClassVar[bool] = True

    def __init__(self) -> None:
        self.by_uid: dict[str, K] = {}
        self.by_name: dict[tuple[str, str], K] = {}
        #: ``path: reason`` of parts that could not be used; the mirror parks and empties it after each object.
        self.problems: list[str] = []
        #: Paths of fields that nobody reads; the mirror counts and empties it.
        self.unread: list[str] = []
        self._gone: dict[str, _Gone] = {}
        #: Uids of objects that are known by what was told of them and were not read yet.
        self._recalled: set[str] = set()

    @abstractmethod
    def fingerprint(self, obj: dict[str, Any]) -> bytes:
        """Return a fingerprint of the raw parts that are read.

        It is taken of everything that is emitted, for it raises UnicodeEncodeError for a text that cannot be told.
        """

    @abstractmethod
    def observe(self, obj: dict[str, Any], moment: Moment) -> Seen:
        """Read the object; raises ObjectError before anything is changed."""

    @abstractmethod
    def insert(self, identity: Identity, mark: bytes, seen: Seen, moment: Moment, out: list[Fact]) -> K:
        """Return the new known object and emit what it says."""

    @abstractmethod
    def change(self, known: K, seen: Seen, moment: Moment, out: list[Fact]) -> bool:
        """Take over a newer version, whose number ``known`` holds already; return whether a fact came of it."""

    @abstractmethod
    def late(
        self, known: K | None, seen: Seen, moment: Moment, superseded_by: Version, out: list[Fact]
    ) -> None:
        """Emit what a version older than ``superseded_by`` said; the known set stays as it is."""

    @abstractmethod
    def end(
        self,
        known: K | None,
        seen: Seen | None,
        version: Version,
        moment: Moment,
        out: list[Fact],
        *,
        final: bool,
    ) -> None:
        """Emit the end of an object; ``seen`` is its final state when there is one."""

    @abstractmethod
    def recall(self, told: Told) -> None:
        """Know again what was told; called before the first frame."""

    def listed(self) -> None:
        """Every object of a complete LIST was applied; called before ``settle``."""

    def settle(self, moment: Moment, out: list[Fact]) -> None:
        """Emit what follows from all objects of a frame together; called once after each frame."""

    def says_as_told(self, known: K, seen: Seen) -> bool | None:
        """Whether a recalled object is read as it was last told; ``None`` where its newest version told something else."""
        del known, seen
        return None

    def is_past(self, obj: dict[str, Any], uid: str, version: Version, *, revived: bool) -> bool:
        """Whether an object was seen at a newer version, or with ``revived`` gone by then."""
        known = self.by_uid.get(uid)
        if known is not None:
            if version >= known.version or version == (known.epoch, known.own_rv):
                return False
            return not (uid in self._recalled and self._is_as_told(known, obj, version))
        gone = self._gone.get(uid) if revived else None
        return gone is not None and gone.covers(version)

    def put(self, obj: dict[str, Any], moment: Moment, out: list[Fact]) -> Outcome:
        """Apply one version of one object.

        Raises ObjectError, with nothing changed, when it cannot be read.
        """
        identity = read_identity(obj, self.kind, namespaced=self.namespaced)
        known = self.by_uid.get(identity.uid)
        if known is None:
            return self._put_new(obj, identity, moment, out)
        version = (moment.epoch, identity.rv)
        recalled = known.uid in self._recalled
        if recalled and version < known.version and self._is_as_told(known, obj, version):
            # told as of a LIST before the restart, and not written since
            return self._put_reread(known, obj, self.fingerprint(obj), known.version, moment, out)
        recalled = recalled and version == known.version
        if version > (known.epoch, known.rv) or recalled:
            mark = self.fingerprint(obj)
            if mark == known.mark:
                known.advance(*version)
                return "same"
            seen = self.observe(obj, moment)
            if recalled and identity.rv < moment.rv and self.says_as_told(known, seen) is False:
                return self._put_reread(known, obj, mark, (moment.epoch, moment.rv), moment, out)
            self._recalled.discard(known.uid)
            known.advance(*version)
            known.mark = mark
            return "changed" if self.change(known, seen, moment, out) else "same"
        if version == (known.epoch, known.own_rv) and known.rv < moment.rv:
            mark = self.fingerprint(obj)
            if mark == known.mark:
                return "same"
            return self._put_reread(known, obj, mark, (moment.epoch, moment.rv), moment, out)
        if identity.rv == known.rv or identity.rv in known.seen:
            return "same"
        self.fingerprint(obj)
        self.late(known, self.observe(obj, moment), moment, known.version, out)
        known.seen = (identity.rv, *known.seen)[-_SEEN_MAX:]
        return "late"

    def _is_as_told(self, known: K, obj: dict[str, Any], version: Version) -> bool:
        """Whether a recalled object says what it was told to say as of a LIST."""
        try:
            seen = self.observe(obj, Moment(0, *version, 0))
        except ObjectError:
            return False
        return self.says_as_told(known, seen) is True

    def _put_reread(
        self,
        known: K,
        obj: dict[str, Any],
        mark: bytes,
        version: Version,
        moment: Moment,
        out: list[Fact],
    ) -> Outcome:
        """Apply what a LIST shows under a version whose content was another: it is true as of the version of the LIST.

        An API server of another version reads what is stored otherwise and writes nothing: an upgrade from 1.36 to 1.37 drops the
        mappings of devices and what the scheduler recorded of them, and every resourceVersion stays.
        """
        own_rv = read_identity(obj, self.kind, namespaced=self.namespaced).rv
        as_of = obj | {"metadata": obj["metadata"] | {"resourceVersion": str(version[1])}}
        seen = self.observe(as_of, moment)
        self._recalled.discard(known.uid)
        known.advance(*version, own_rv)
        known.mark = mark
        return "changed" if self.change(known, seen, moment, out) else "same"

    def _put_new(self, obj: dict[str, Any], identity: Identity, moment: Moment, out: list[Fact]) -> Outcome:
        version = (moment.epoch, identity.rv)
        gone = self._gone.get(identity.uid)
        if gone is not None and gone.covers(version):
            if identity.rv == gone.rv or identity.rv in gone.seen:
                return "same"
            self.fingerprint(obj)
            self.late(None, self.observe(obj, moment), moment, (gone.epoch, gone.rv), out)
            seen_before = (identity.rv, *gone.seen)[-_SEEN_MAX:]
            self._gone[identity.uid] = msgspec.structs.replace(gone, seen=seen_before)
            return "late"
        mark, seen = self.fingerprint(obj), self.observe(obj, moment)
        other = self.by_name.get((identity.namespace, identity.name))
        if other is not None and version <= other.version:
            self.late(None, seen, moment, other.version, out)
            self._bury(identity.uid, other.version, (identity.rv,))
            return "late"
        if other is not None:
            self._remove(other, None, version, moment, out, final=False)
        known = self.insert(identity, mark, seen, moment, out)
        self.by_uid[known.uid] = known
        self.by_name[known.namespace, known.name] = known
        return "added"

    def delete(self, obj: dict[str, Any], moment: Moment, out: list[Fact]) -> Outcome:
        """Apply a DELETED event. Raises ObjectError when the object cannot be told."""
        identity = read_identity(obj, self.kind, namespaced=self.namespaced)
        version = (moment.epoch, identity.rv)
        known = self.by_uid.get(identity.uid)
        if known is None:
            if identity.uid in self._gone:
                return "same"
            self.fingerprint(obj)
            self.end(None, self.observe(obj, moment), version, moment, out, final=True)
            self._bury(identity.uid, version, ())
            return "changed"
        self.fingerprint(obj)
        final = self.observe(obj, moment) if version >= known.version else None
        self._remove(known, final, max(version, known.version), moment, out, final=True)
        return "changed"

    def vanish(self, known: K, moment: Moment, out: list[Fact]) -> None:
        """A LIST no longer has the object: it was deleted while nobody looked."""
        version = max((moment.epoch, moment.rv), known.version)
        self._remove(known, None, version, moment, out, final=False)

    def _remove(
        self, known: K, seen: Seen | None, version: Version, moment: Moment, out: list[Fact], *, final: bool
    ) -> None:
        self.end(known, seen, version, moment, out, final=final)
        self._recalled.discard(known.uid)
        del self.by_uid[known.uid]
        if self.by_name.get((known.namespace, known.name)) is known:
            del self.by_name[known.namespace, known.name]
        self._bury(known.uid, version, (*known.seen, known.rv)[-_SEEN_MAX:])

    def _bury(self, uid: str, version: Version, seen: tuple[int, ...], *, recalled: bool = False) -> None:
        self._gone[uid] = _Gone(*version, seen, recalled)
        if len(self._gone) > _GONE_MAX:
            del self._gone[next(iter(self._gone))]

    def _remember(self, known: K) -> None:
        """Know an object by what was told of it; call it for older versions first, so that a name is the newest's."""
        self.by_uid[known.uid] = known
        self.by_name[known.namespace, known.name] = known
        self._recalled.add(known.uid)

    def _remember_gone(self, uid: str, version: Version) -> None:
        """Bury what was told to be gone under ``version``."""
        self._bury(uid, version, (), recalled=True)
