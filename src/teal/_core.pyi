from collections.abc import Callable, Sequence
import enum
from typing import Any, NoReturn


from numpy.typing import NDArray
PlanEntry = tuple[str, tuple[int, ...] | None, int, int, int | None, tuple[int, int] | tuple[int, int, tuple[int, int, int, int]] | None]

ABI_VERSION: int = 6

def cpu_features() -> dict[str, Any]:
    """
    What the CPU offers and what the OS lets us use: architecture, vendor, brand, features (name -> offered, enabled), xcr0, isa (after TEAL_ISA), isa_widest, isa_error (None, or why TEAL_ISA was not honoured), invariant_tsc, tick_source.
    """

def isa() -> str:
    """
    The rung that run-time dispatch uses: 'v2', 'avx2', 'avx512' or 'amx' ('armv8' on aarch64). Raises InvalidArgument when TEAL_ISA names something this machine does not have.
    """

def amx_permission() -> int:
    """
    Asks the kernel for AMX tile state for this process. 0, or the errno of the refusal (ENOTSUP: no AMX here).
    """

def ticks() -> int:
    """The CPU's counter; compare intervals only, within one tick_source."""

def ticks_per_second() -> int:
    """Rate of ticks(), measured once against the monotonic clock."""

def ticks_to_ns(interval: int) -> int:
    """Nanoseconds in an interval of ticks()."""

def monotonic_ns() -> int:
    """CLOCK_MONOTONIC in nanoseconds: the scale of deadlines."""

def jitter(core: int, milliseconds: int) -> dict[str, float]:
    """
    Spins on `core` for 1 to 60,000 ms with the GIL released and counts the gaps in our own time: milliseconds, reads, over_5us, over_20us, over_100us (cumulative counts), lost_ms, max_us. Raises InvalidArgument for a core that this process may not use.
    """

def probe_system() -> dict[str, int]:
    """
    Uses what Teal needs from the kernel and reports 0 or an errno by name: memfd_seals, memfd_huge, futex_waitv, pidfd_open, robust_futex, fd_passing, peer_identity.
    """

def walls_offered() -> dict[str, Any]:
    """
    filter, capabilities (bool), landlock (version, 0: none), missing: what an agent's process can be locked in with here.
    """

def confine() -> dict[str, Any]:
    """
    Locks this process in for good: see core/agents/confine.hpp. As walls_offered().
    """

class Tensor:
    """
    A dtype, a shape and a place in shared memory. NumPy, torch and DLPack consumers see it without a copy;
    the memory stays on loan until the Tensor and every view of it are gone. Source: docs/ownership.md.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, outermost first."""

    @property
    def dtype(self) -> str:
        """Name of the element type: 'float32', 'bfloat16', 'BYTES', …"""

    @property
    def nbytes(self) -> int:
        """Bytes in use."""

    @property
    def size(self) -> int:
        """Number of elements."""

    @property
    def ndim(self) -> int:
        """Number of dimensions."""

    @property
    def readonly(self) -> bool:
        """True when no view of it can be written through."""

    @property
    def released(self) -> bool:
        """True after release()."""

    @property
    def address(self) -> int:
        """Address of the first byte in this process."""

    @property
    def exports(self) -> int:
        """Buffers and capsules of it that are still out."""

    def numpy(self) -> NDArray[Any]:
        """
        A NumPy view, no copy (BYTES: a copy, an object array of bytes). Raises Closed after release().
        """

    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> NDArray[Any]: ...

    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        """
        DLPack capsule, no copy. Raises BufferError for BYTES, and for a read-only tensor when the consumer speaks DLPack < 1.0.
        """

    def __dlpack_device__(self) -> tuple[int, int]: ...

    def release(self) -> None:
        """
        Gives the loan back now instead of when the Tensor is collected. Raises Busy while views of it exist.
        """

    def __len__(self) -> int: ...

    def __getitem__(self, key: Any, /) -> Any:
        """Indexes the NumPy view."""

    def __setitem__(self, key: Any, value: Any, /) -> None:
        """Assigns through the NumPy view."""

    def __reduce__(self) -> NoReturn: ...

    def __repr__(self) -> str: ...

def live_tensors() -> list[tuple[Tensor, str, int]]:
    """
    Every tensor that holds a loan now; who took it and when, if loans are traced.
    """

def trace_loans(where: Callable[[], str] | None) -> None:
    """
    From now on `where()` is asked for each new tensor who takes it. None: no longer.
    """

def describe(array: Any, /) -> tuple[str, tuple[int, ...], bool]:
    """dtype name, shape, contiguous: of an array in CPU memory."""

def dtype_size(arg: str, /) -> int:
    """Bytes an element."""

def dtype_names() -> list[str]: ...

def make_region(size: int, id: int, pages: str = 'best', spill: bool = False) -> tuple[int, int, int]:
    """
    (descriptor, bytes, page bytes) of a new sealed region with its pages reserved. Raises QuotaExceeded.
    """

def sealed_file(name: str, contents: bytes) -> int:
    """Descriptor of a read-only memfd that nobody can change any more."""

def private_pages(start: int, end: int) -> int:
    """
    1: this process has written into its private mapping there; 0: it has not; -1: the kernel cannot tell.
    """

def available_memory() -> int:
    """Bytes that a reservation may take now."""

class Watch:
    """
    What is remembered of tensors in a list: identity, version and address, and ranges of private mappings.
    """

    def __init__(self, tensors: list[tuple[int, int, int, int]], ranges: list[tuple[int, int]]) -> None:
        """tensors: (position, id, version or -1, address). ranges: (start, end)."""

    def unchanged(self, arguments: list[Any], /) -> bool:
        """Are they all in the list still, and as they were?"""

class Place:
    """
    Memory of a session that a call may use where it is, kept while this is held.
    """

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...] | None:
        """None: an output to come, whose shape only its run can tell."""

    @property
    def key(self) -> bytes:
        """Equal for equal places, bytes, dtypes and shapes."""

    @property
    def nbytes(self) -> int: ...

    @property
    def region(self) -> int: ...

    @property
    def offset(self) -> int: ...

    @property
    def readonly(self) -> bool: ...

    @property
    def link(self) -> tuple[int, int, int, int] | None:
        """
        Of an output to come: which of those that the request waits for, output, region and offset of its descriptor block.
        """

class Session:
    """One client's connection to one pool, as memory."""

    def __init__(self, fd: int, index: int, epoch: int, slots: int, idle_ns: int, socket: int) -> None: ...

    def add_region(self, id: int, fd: int) -> None: ...

    def take_empty_regions(self, keep_bytes: int) -> list[int]: ...

    def allocate(self, dtype: str, shape: Sequence[int], align: int = 256) -> Tensor | None: ...

    def place_of(self, array: Any, /) -> Place | None:
        """
        Where a Tensor of this session, or a packed NumPy array or memoryview of one, lies; None: it has to be copied. Raises Closed after release().
        """

    def tensor_at(self, address: int, nbytes: int) -> Tensor | None:
        """
        A tensor of this session that somebody holds and that has all of these bytes. The caller keeps what shows them.
        """

    def peer_gone(self) -> bool: ...

    def close(self) -> None: ...

    def rouse(self) -> None:
        """Wakes the pool's leader to look at all rings."""

    def count_relayed(self, model: int) -> None:
        """An input of a request came from another session, through this process."""

    def raise_idle(self, ns: int) -> None:
        """Callers may spin for so long, if that is longer than before."""

    @property
    def bytes_used(self) -> int: ...

    @property
    def region_bytes(self) -> int: ...

    @property
    def slots_out(self) -> int: ...

    @property
    def page_bytes(self) -> int: ...

    @property
    def spin_ns(self) -> int: ...

class SlotHome:
    """Loans slots of one model and one set of shapes."""

    def __init__(self, session: Session, model: int, version: int, inputs: list[PlanEntry], outputs: list[PlanEntry], may_spin: bool, keep: int = 64) -> None: ...

    def loan(self, places: list[Place | None] | None = None) -> Slot | None:
        """
        A slot, or None when the session's regions have no room for one. places: of each input and output, for plans that have some.
        """

    def deserted(self) -> bool:
        """Is some of the memory that the last loan was made over gone?"""

    def made(self, slot: Slot) -> bool: ...

    def forget_idle(self) -> None:
        """Gives the memory of idle slots back."""

class Slot:
    """Memory and completion line of one call, on loan."""

    def input(self, index: int, /) -> Tensor | None: ...

    def ready(self) -> Slot | None:
        """
        This slot, or a sibling when its outputs are still looked at; None: no room.
        """

    def output(self, index: int, /) -> Tensor | None: ...

    def outputs(self) -> list[Tensor | None]:
        """All outputs of a request that has ended; later calls leave them alone."""

    def give_up(self) -> None:
        """There are no outputs to take: the next call may have the memory."""

    def count_copy(self, nbytes: int) -> None:
        """This side copied a tensor's contents."""

    def write(self, index: int, array: Any, /) -> None:
        """Copies an array into input `index`; counted."""

    def fill(self, index: int, address: int, nbytes: int) -> None:
        """
        Copies packed memory of the planned dtype and shape into input `index`; counted. The caller keeps it meanwhile.
        """

    def write_packed(self, index: int, packed: bytes, /) -> None: ...

    def place_of(self, tensor: Tensor, /) -> int:
        """Which input of this slot the tensor is, or -1."""

    @property
    def n_given(self) -> int: ...

    def is_for(self, session: Session, model: int, version: int) -> bool:
        """
        Are its requests this session's, for this model and version (0: the current one)? Not after outgrow().
        """

    def outgrow(self) -> None:
        """
        Its outputs did not fit: what calls on its inputs gets another slot over them.
        """

    @property
    def model(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """An upper bound of the shared memory it takes."""

    def submit(self, priority: int, deadline_ns: int) -> None: ...

    def submit_after(self, priority: int, deadline_ns: int, after: Sequence[Slot | Event]) -> None:
        """
        Runs once all of these have ended well; is cancelled when one ends otherwise.
        """

    def to_come(self, output: int, awaited: int, generation: int) -> Place | None:
        """
        Where an output of this request will be, for one that waits for it as its `awaited`-th; None: it is another request's by now.
        """

    def began_after_ns(self, other: Slot) -> int:
        """
        Nanoseconds from the end of another request to the beginning of this one. Both have ended well.
        """

    def call_direct(self, deadline_ns: int) -> bool:
        """
        Runs the request on a resident device kernel that serves the slot. False where none does: submit() then.
        """

    @property
    def session(self) -> Session: ...

    def wait(self, until_ns: int) -> bool:
        """
        True when the request has ended; False when CLOCK_MONOTONIC until_ns (0: none) passed first.
        """

    def ended(self) -> bool: ...

    def plain_success(self) -> bool: ...

    def cancel(self) -> bool: ...

    def running(self) -> bool: ...

    def quiescent(self) -> bool: ...

    def result(self) -> tuple[int, int, int, int, int, int]:
        """(state, reason, detail, version, bytes copied in, out)"""

    def message(self) -> str: ...

    @property
    def generation(self) -> int: ...

    @property
    def index(self) -> int: ...

    @property
    def n_inputs(self) -> int: ...

    @property
    def n_outputs(self) -> int: ...

class Call:
    """
    A prepared call: inputs and outputs stay where they are, one crossing into C++ a call.
    """

    def __init__(self, slot: Slot, outputs: Any, on_other_end: Callable[[Slot], Any], timeout_ns: int, priority: int, renew: Callable[[Slot], Slot | None] | None = None) -> None: ...

    def __reduce__(self) -> NoReturn: ...

    def __call__(self) -> Any:
        """
        Runs the request and returns the outputs object, the same one every time.
        """

    @property
    def outputs(self) -> Any: ...

    @property
    def slot(self) -> Slot: ...

    @property
    def last_run_ns(self) -> int:
        """Nanoseconds the last run spent in the kernel, in the worker."""

def slot_of(tensor: Tensor, /) -> Slot | None:
    """The slot that the tensor is an input of."""

class Event:
    """A completion line without a request."""

    def __init__(self, session: Session) -> None: ...

    def signal(self) -> bool:
        """False when it had ended already."""

    def cancel(self) -> bool:
        """What waits for it is cancelled. False when it had ended already."""

    def rearm(self) -> None:
        """It has not come yet. Raises Busy when it has not ended."""

    def wait(self, until_ns: int) -> bool:
        """
        True when it has ended; False when CLOCK_MONOTONIC until_ns (0: none) passed first.
        """

    def ended(self) -> bool: ...

    def came(self) -> bool:
        """Has it ended, and well?"""

    @property
    def index(self) -> int:
        """Of its completion line in the session."""

    @property
    def generation(self) -> int: ...

    @property
    def session(self) -> Session: ...

class Notifier:
    """
    Calls back when requests have ended; one thread, started by the first add().
    """

    def __init__(self, session: Session) -> None: ...

    def add(self, slot: Slot, callback: Callable[[], Any]) -> None: ...

    def add_event(self, event: Event, callback: Callable[[], Any]) -> None: ...

    def stop(self) -> None: ...

def spilled_tensors(fd: int, layout: list[tuple[str, tuple[int, ...], int, int]], hold: object = None) -> list[Tensor]: ...

class Sweeper:
    """The host's hold on one pool: sessions, versions, deadlines, the dead."""

    def __init__(self, idle_ns: int) -> None: ...

    @property
    def pool_fd(self) -> int: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def tick(self) -> None: ...

    def adopt_bpf_session(self, fd: int, slots: int, limit: int) -> tuple[int, int, int, int]: ...

    def limit_priority(self, session: int, most: int) -> None: ...

    def open_session(self, slots: int, limit: int) -> tuple[int, int, int]: ...

    def grant_region(self, session: int, count: int) -> None: ...

    def close_session(self, session: int, gone: bool) -> None: ...

    def session_in_flight(self, session: int) -> int: ...

    def free_session(self, session: int) -> None: ...

    def open_version(self, model: int, number: int, flags: int, native_op: int) -> int: ...

    def version_generation(self, line: int) -> int: ...

    def publish_version(self, line: int, make_current: bool) -> None: ...

    def retire_version(self, line: int) -> None: ...

    def version_in_flight(self, line: int) -> int: ...

    def cancel_version(self, line: int) -> None: ...

    def park_version(self, line: int) -> bool: ...

    def unpark_version(self, line: int) -> None: ...

    def version_running(self, line: int) -> int: ...

    def version_waiting(self, line: int) -> int: ...

    def free_version(self, line: int) -> None: ...

    def set_version_flags(self, line: int, flags: int) -> None: ...

    def bpf_stages(self, session: int) -> dict[str, list[tuple[int, int]]]:
        """Of a BPF session, as workers saw it; empty for any other."""

    def client_stages(self, session: int) -> dict[int, dict[str, Any]]:
        """
        By index of the model (-1: all that found no room of their own): requests, copies_in, bytes_in, and the buckets of copy, wake, total.
        """

    def bury_worker(self, worker: int, detail: int, stopping: bool = False) -> tuple[int, int]: ...

    def end_handed_over(self, record: int, generation: int, spill: int) -> None: ...

    def record_session(self, record: int) -> int: ...

    def record_request(self, record: int) -> tuple[int, int]:
        """Slot and generation of its request."""

    def is_awaited(self, session: int, slot: int, generation: int) -> bool:
        """Is a request out that waits, or waited, for this one?"""

    def is_used_again(self, session: int, slot: int, generation: int) -> bool:
        """Has the slot had a later request that ended?"""

    def set_idle(self, ns: int) -> None: ...

    def stop_taking(self, stopping: bool) -> None:
        """What is in the rings now is still taken; what comes later is refused."""

    def all_taken(self) -> bool:
        """
        Was everything taken that was in the rings when stop_taking() was called?
        """

    def active(self) -> int: ...

    def queued(self) -> int:
        """In the run queue, or held for company or concurrency."""

    def set_batching(self, rows: int, delay_ns: int) -> None: ...

    def set_quantum(self, ns: int) -> None: ...

    def limit_running(self, model: int, most: int) -> None: ...

    def repairs(self) -> int: ...

    def loans_fds(self) -> tuple[int, int]:
        """
        For a worker that this pool lends: a descriptor of the pool that reads only, the caller's to close, and that of the loans, which stays ours.
        """

    def lend(self, worker: int, lender: Sweeper, its_worker: int) -> None:
        """
        Workers from this one on are lent: this one by that pool, for its worker's idle time.
        """

    def bury_lent(self, worker: int, pid: int) -> None: ...

    def wake_worker(self, worker: int) -> None: ...

    def worker(self, worker: int) -> dict[str, Any]: ...

    def version(self, line: int) -> dict[str, Any]: ...

    def session(self, session: int) -> dict[str, Any]: ...

    def attach_seat(self, seat: int, link: str, ring: int = 8192) -> tuple[int, int, int, int]:
        """
        Incarnation, and descriptors of its view and its desk for workers, which stay ours, and of its view for the agent, which do not.
        """

    def activate_seat(self, seat: int, incarnation: int) -> None: ...

    def deactivate_seat(self, seat: int, reason: str) -> bool:
        """False: nobody decided there."""

    def detach_seat(self, seat: int, incarnation: int) -> None: ...

    def active_seat(self, seat: int) -> int:
        """Incarnation whose agent decides; 0: none does."""

    def set_seat_limits(self, seat: int, beat_ns: int, wait_ns: int, overtaken_ns: int = 0) -> None: ...

    def set_local_fast_path(self, seat: int, on: bool) -> None: ...

    def wake_agent(self, seat: int, settings: bool) -> None: ...

    def take_seat_events(self) -> list[tuple[int, int, str, str, int]]:
        """
        (seat, incarnation, kind, reason, CLOCK_MONOTONIC ns) since the last time. kind: an agent was put off its seat, it was as its heart stood still (frozen), or the heart of such a one beats again.
        """

    def seat_events_fd(self) -> int:
        """Readable once there are events: an eventfd, ours to close."""

    def call_agent(self, seat: int, incarnation: int) -> None:
        """
        The agent of that incarnation is to look at its control socket, also when it sleeps.
        """

    def seat_model(self, model: int, seat: int) -> None:
        """Who decides about the requests of a name."""

    def seat_worker(self, worker: int, seat: int) -> None:
        """Who decides for a worker."""

    def deal_seats(self, seats: int) -> None:
        """
        These seats, a bit each, share all requests from now on; 0: each name has its own.
        """

    def set_trace(self, trace: Trace | None) -> None: ...

KERNEL_PURE: int = 1

KERNEL_IDEMPOTENT: int = 2

KERNEL_BATCHES: int = 8

KERNEL_PREEMPTIBLE: int = 16

KERNEL_YIELDS: int = 32

MAX_BATCH: int = 256

KERNEL_NATIVE: int = 4

MAX_WORKERS: int = 64

MODELS_COUNTED_APART: int = 63

class WorkerRegion:
    """A region of a client, as a buffer over all of it."""

    @property
    def session(self) -> int: ...

    @property
    def id(self) -> int:
        """-1: the session's own."""

class SealedPages:
    """The whole pages of a sealed file, read-only, as a buffer."""

    def __init__(self, fd: int) -> None: ...

class WorkerSlot:
    """The tensors of one slot, as a kernel sees them."""

    @property
    def inputs(self) -> list[Tensor | None]: ...

    @property
    def outputs(self) -> list[Tensor | None]: ...

    @property
    def rooms(self) -> list[tuple[int, int] | None]:
        """
        Address and bytes of the memory for outputs whose shape only the run can tell; None for all others. Valid as long as the binding.
        """

    @property
    def wanted(self) -> list[bool]: ...

    def count_copy_in(self, nbytes: int) -> None:
        """A kernel that had to copy an input says so here."""

    def count_copy_out(self, nbytes: int) -> None: ...

    @property
    def session(self) -> int: ...

    @property
    def session_region(self) -> WorkerRegion: ...

    @property
    def line(self) -> int:
        """Offset of the slot's device line in the session's region."""

    @property
    def stamp(self) -> int: ...

    @property
    def owner(self) -> int: ...

    @property
    def current(self) -> bool:
        """
        New requests of this slot go to the version that is being bound; else its device line must not be served.
        """

    def input_place(self, index: int) -> tuple[WorkerRegion, int, int] | None:
        """Region, offset and bytes."""

    def output_place(self, index: int) -> tuple[WorkerRegion, int, int] | None: ...

    def run_native(self) -> bool:
        """The same on the CPU. False: it failed."""

    @property
    def path(self) -> str:
        """Where the next run takes place: cpu, apk or pl."""

    @path.setter
    def path(self, arg: str, /) -> None: ...

    @property
    def fallback(self) -> bool:
        """
        Set when the slot goes to another path than was asked for: the next run counts it.
        """

    @fallback.setter
    def fallback(self, arg: bool, /) -> None: ...

    def at_end(self, callback: Callable[[], None]) -> None:
        """
        To be called once, before the memory of the tensors may go to anybody else.
        """

class Worker:
    """The loop that runs kernels."""

    def __init__(self, pool_fd: int, index: int, lender_fd: int = -1, loans_fd: int = -1, its_worker: int = 0) -> None: ...

    def add_session(self, fd: int, index: int, epoch: int, slots: int, granted: int) -> None: ...

    def add_region(self, session: int, epoch: int, id: int, fd: int) -> None: ...

    def drop_region(self, session: int, epoch: int, id: int) -> None: ...

    def add_bpf_session(self, fd: int, index: int, epoch: int, slots: int, nbytes: int) -> None: ...

    def drop_session(self, session: int, epoch: int) -> None: ...

    def set_kernel(self, line: int, generation: int, kernel: object, spill: object) -> None: ...

    def set_builtin(self, line: int, generation: int, name: str) -> str:
        """How its requests can be preempted: none, yields or anywhere."""

    def set_systems(self, line: int, generation: int, fd: int) -> str:
        """Name of the load that the sealed file holds. Raises InvalidArgument."""

    def set_device(self, line: int, generation: int, fd: int, kernel: object, spill: object) -> None:
        """
        A systems load whose bindings may run on a device: kernel.bind(slot) returns a callable, or None for the CPU.
        """

    def drop_kernel(self, line: int, generation: int) -> None: ...

    def unbind(self, line: int, generation: int) -> None: ...

    def on_dropped(self, callback: Callable[[str, int, int], None]) -> None: ...

    def on_fetch(self, callback: Callable[[int, int, int], tuple[int, Sequence[tuple[int, str, Sequence[int], int, int]]] | None]) -> None:
        """
        Called with session, epoch and number for a spill that a request reads: (descriptor, layout), or None.
        """

    def run(self) -> None:
        """Until quit()."""

    def quit(self) -> None: ...

    def add_seat(self, view_fd: int, desk_fd: int, link: str) -> None:
        """Takes the descriptors."""

    def decide_inline(self, policy: Policy) -> None:
        """The policy is called in this worker, the pool's only one, from now on."""

    def drop_seat(self, seat: int, incarnation: int) -> None: ...

    def add_trace(self, fd: int) -> None:
        """Takes the descriptor."""

    def drop_trace(self) -> None: ...

def bpf_create_memory(nbytes: int) -> int:
    """
    A memory-mappable BPF array of one value; raises NotFound where bpf(2) is not permitted.
    """

def bpf_create_bell() -> int:
    """A BPF ring buffer of one page."""

def bpf_memory_bytes(fd: int) -> int:
    """Raises InvalidArgument when this is no map that can hold a session."""

def bpf_tensors_at(slots: int) -> int:
    """Where the tensors begin in the map of a session with so many slots."""

def bpf_session(fd: int, index: int, epoch: int, slots: int, nbytes: int, idle_ns: int, socket: int) -> Session: ...

def bpf_hand_over(session: Session, slots: Sequence[Slot]) -> None:
    """From here on only BPF programs use the session."""

def bpf_counts(session: Session) -> dict[str, int]: ...

def bpf_shut(session: Session) -> None: ...

def bpf_layout(session: Session, model: int, version: int, priority: int) -> bytes: ...

class Bell:
    """
    Wakes a sleeping worker on behalf of BPF programs; a thread that needs no GIL.
    """

    def __init__(self, map: int, bpf: Session, ordinary: Session, socket: int) -> None: ...

    def stop(self) -> None: ...

    @property
    def rung(self) -> int: ...

class Trace:
    """A recording of what happens in a pool: core/agents/trace.hpp."""

    def __init__(self, events: int) -> None: ...

    @property
    def fd(self) -> int: ...

    @property
    def left_out(self) -> int: ...

    @property
    def capacity(self) -> int: ...

    def __len__(self) -> int: ...

    def add(self, kind: int, at: int, begin: int, worker: int, record: int, why: int, more: int) -> None:
        """For tests."""

    def events(self) -> list[tuple[str, int, int, int, int, int, int]]:
        """
        (kind, at, begin, worker, record, why, more); times in nanoseconds since the first.
        """

def parse_link(spec: str) -> dict[str, Any]:
    """
    What a link's specification means: kind, figures in ns, tricks, and its shortest text. Raises InvalidArgument.
    """

def measure_link(spec: str, n: int) -> list[tuple[str, int, list[int]]]:
    """
    Each primitive of a link: its name, the ns asked, and the ns that each of n tries took. Raises InvalidArgument.
    """

def open_loop(kinds: list[tuple[list[Slot], bool]], at_ns: NDArray[Any], kind: NDArray[Any], value: NDArray[Any], most_out: int, patience_ns: int, nap_ns: int = 0, agent: AgentLoop | None = None) -> dict[str, Any]:
    """
    Sends requests when they are due (ns from the start, uint64), of a kind (uint32) and with a value (int64) each, whatever became of those before. A kind: its slots, and whether the value is written into input 0. Returns latency_ns and ended_ns (uint64 as bytes; all ones: failed), started_ns (CLOCK_MONOTONIC), most_late_ns, failed, failure. nap_ns: it sleeps so long between its looks; 0: never. agent: its loop does a step after each look. Raises InvalidArgument; PeerDied when nothing ends for patience_ns.
    """

def measure_seat(n: int, host_core: int, agent_core: int) -> dict[str, list[int]]:
    """
    Nanoseconds of n tries of each piece of a seat (core/bench/seat_costs.hpp). Raises InvalidArgument, PeerDied.
    """

def measure_events(policy: Policy, seconds: float, host_core: int, agent_core: int) -> tuple[int, int, float]:
    """
    Events a policy was told of, decisions it made, and the seconds that took. Raises InvalidArgument.
    """

def measure_echo(nbytes: int, n: int, core_a: int, core_b: int) -> list[int]:
    """Nanoseconds of each bare round trip between two cores: the floor."""

def measure_call(slot: Slot, n: int) -> list[int]:
    """
    Nanoseconds of each of n identity calls on this slot, timed in the core.
    """

class Timed:
    """
    Calls a callable and keeps how long it took inside, measured as a worker measures its kernels.
    """

    def __init__(self, callable: object) -> None: ...

    def __call__(self) -> Any: ...

    @property
    def last_run_ns(self) -> int:
        """Nanoseconds of the last call."""

LINE_BYTES: int = 128

LINE_ASKED: int = 0

LINE_DONE: int = 64

LINE_STATUS: int = 68

LINE_STATE: int = 72

LINE_STAMP: int = 80

LINE_OWNER: int = 84

LINE_LIMIT: int = 88

DIRECTORY_BYTES: int = 17536

DIRECTORY_MAGIC: int = 1380209748

DIRECTORY_LAYOUT: int = 1

DIRECTORY_CAPACITY: int = 256

DIRECTORY_REGIONS: int = 64

def fence() -> None:
    """
    What this thread stored is visible, to other threads and to devices, before what it stores or reads from now on.
    """

class DeviceLine:
    """
    The client's side of a control line of a resident kernel. One thread a line.
    """

    def __init__(self, memory: object, offset: int = 0) -> None: ...

    def ask(self) -> int:
        """Asks for a run; the generation to wait for."""

    def wait(self, generation: int, timeout_ns: int, spin_ns: int = 1000000) -> int:
        """
        0 done, 1 invalid, 2 failed, 3 parked (ask the worker, then wait again), 4 lost, 5 late.
        """

    def run(self, timeout_ns: int = 1000000000, spin_ns: int = 1000000) -> int:
        """ask() and wait()."""

    @property
    def asked(self) -> int: ...

    @property
    def done(self) -> int: ...

    @property
    def state(self) -> int: ...

    @property
    def epoch(self) -> int: ...

class CpuRun:
    """A resident kernel on a thread."""

    def done(self) -> bool: ...

    def wait(self) -> None: ...

class CpuKernel:
    """A task of the core, for the cpu device."""

    def __init__(self, name: str) -> None: ...

    def launch(self, parts: list[int], batch: int) -> None: ...

    def start(self, directory: int, regions: list[int], cores: set[int]) -> CpuRun: ...

def systems_loads() -> list[tuple[str, str, list[tuple[str, tuple[int, ...]]], str, int, int]]:
    """
    The loads: name, dtype of the weights, (name, shape) of each tensor by place, dtype and columns of x, classes.
    """

def systems_file(fd: int) -> tuple[str, int]:
    """
    (load, where the weights begin) of a sealed model file. Raises InvalidArgument.
    """

class SystemsNetwork:
    """
    A network of a sealed model file, run in this process; isa: v2, avx2, avx512 or '' for the widest.
    """

    def __init__(self, fd: int, isa: str = '') -> None: ...

    def run(self, x: NDArray[Any], scores: NDArray[Any], verdict: NDArray[Any]) -> None: ...

    def measure(self, x: NDArray[Any], scores: NDArray[Any], verdict: NDArray[Any], n: int) -> list[float]:
        """Nanoseconds of each of n runs."""

class Request:
    """
    A request, as of the last event about it. May carry attributes of the policy's own. Times are nanoseconds on the clock of Policy.now.
    """

    @property
    def index(self) -> int:
        """
        Its record: a number below the most that may be out, used again by others later.
        """

    @property
    def generation(self) -> int:
        """Tells uses of a record apart."""

    @property
    def model(self) -> int:
        """Index of its model."""

    @property
    def session(self) -> int:
        """Index of its client's session."""

    @property
    def model_name(self) -> str:
        """Name of its model; '#INDEX' until it is known."""

    @property
    def client(self) -> str:
        """Its client as 'UID/PID'; '#INDEX' until that is known."""

    @property
    def priority(self) -> int:
        """Higher is more urgent."""

    @property
    def arrived_ns(self) -> int: ...

    @property
    def deadline_ns(self) -> int:
        """0: none."""

    @property
    def expected_ns(self) -> int:
        """What such requests usually take; 0: not known."""

    @property
    def ran_ns(self) -> int:
        """How long it has run so far."""

    @property
    def worker(self) -> int | None:
        """The only worker that can go on with it; None: any."""

    @property
    def runnable(self) -> bool:
        """It may run."""

    @property
    def preemptible(self) -> bool:
        """It can be taken from its worker ..."""

    @property
    def yields(self) -> bool:
        """... at its own yield points only."""

    @property
    def staged(self) -> bool:
        """
        A worker has it, or is about to. Setting it changes what this object says, for policies made of policies.
        """

    @staged.setter
    def staged(self, arg: bool, /) -> None: ...

    @property
    def over(self) -> bool:
        """It has ended."""

    def __getattr__(self, name: str) -> Any: ...
    def __setattr__(self, name: str, value: Any) -> None: ...

    def __hash__(self) -> int: ...

    def __repr__(self) -> str: ...

class PolicyWorker:
    """A worker, as of the last call with it."""

    @property
    def index(self) -> int: ...

    @property
    def running(self) -> Request | None:
        """What it is believed to run."""

    @property
    def since_ns(self) -> int:
        """Since when it runs or idles."""

    @property
    def slice_ns(self) -> int:
        """How long what runs was given; 0: until it ends."""

    @property
    def staged(self) -> int:
        """Decisions that wait for it."""

    @property
    def idle(self) -> bool: ...

    @property
    def online(self) -> bool: ...

class Decision:
    """What pick() may return instead of a request: with how it is to run."""

    def __init__(self, request: Request | None, *, slice_ns: int = 0, expires_ns: int = 0, idle_only: bool = False, may_not_preempt: bool = False, local_default: bool = False) -> None:
        """
        slice_ns: how long it may run before it leaves its worker, 0: until it ends. expires_ns: refused when it is taken up after that time. idle_only: refused unless the worker has nothing to do. may_not_preempt: not even when its slice is over. local_default: with request None, the pool's own order chooses.
        """

    @property
    def request(self) -> Request | None: ...

    @property
    def slice_ns(self) -> int: ...

    @property
    def expires_ns(self) -> int: ...

class Policy:
    """A policy as a mechanism drives it: a shipped one, or a PythonPolicy."""

    @property
    def name(self) -> str: ...

    def set(self, name: str, value: str) -> None:
        """
        One setting. Raises InvalidArgument for a name or a value that it does not take.
        """

    def settings(self) -> list[tuple[str, str]]:
        """(name, value) of all settings, as set() takes them."""

    def named(self, kind: int, index: int, name: str) -> None:
        """Model (kind 0) or session (1) `index` is called `name`."""

    def dump(self) -> str:
        """Its state, for people."""

    @property
    def depth(self) -> int: ...

    @property
    def work_conserving(self) -> bool: ...

    @property
    def errors(self) -> int:
        """Calls that raised, or made no sense."""

    @property
    def last_error(self) -> str: ...

class PythonPolicy(Policy):
    """Drives an object of a class that derives from teal.agents.Policy."""

    def __init__(self, policy: object) -> None: ...

    @property
    def python(self) -> object: ...

def make_policy(name: str) -> Policy:
    """A shipped policy; None: there is none of that name."""

def policy_names() -> list[str]: ...

def play(policy: Policy, script: Sequence[int], workers: int = 4) -> tuple[list[int], str]:
    """
    Plays a sequence of events to a policy, one for each word. Returns what it decided (for each pick the record + 1 and the slice, or 0), and what was wrong with it, or ''.
    """

def parse_time(setting: str, value: str, least: int) -> int: ...

def parse_weight(setting: str, value: str) -> int: ...

def parse_whole(setting: str, value: str, least: int, most: int) -> int: ...

def parse_flag(setting: str, value: str) -> bool: ...

def show_time(ns: int) -> str: ...

def show_weight(thousandths: int) -> str: ...

class Spread(enum.Enum):
    fixed = 0

    exponential = 1

    lognormal = 2

class SimType:
    def __init__(self) -> None: ...

    @property
    def name(self) -> str: ...

    @name.setter
    def name(self, arg: str, /) -> None: ...

    @property
    def share(self) -> float: ...

    @share.setter
    def share(self, arg: float, /) -> None: ...

    @property
    def spread(self) -> Spread: ...

    @spread.setter
    def spread(self, arg: Spread, /) -> None: ...

    @property
    def mean_ns(self) -> int: ...

    @mean_ns.setter
    def mean_ns(self, arg: int, /) -> None: ...

    @property
    def sigma(self) -> float: ...

    @sigma.setter
    def sigma(self, arg: float, /) -> None: ...

    @property
    def sessions(self) -> int: ...

    @sessions.setter
    def sessions(self, arg: int, /) -> None: ...

    @property
    def priority(self) -> int: ...

    @priority.setter
    def priority(self, arg: int, /) -> None: ...

    @property
    def deadline_ns(self) -> int: ...

    @deadline_ns.setter
    def deadline_ns(self, arg: int, /) -> None: ...

    @property
    def preemptible(self) -> bool: ...

    @preemptible.setter
    def preemptible(self, arg: bool, /) -> None: ...

    @property
    def yields(self) -> bool: ...

    @yields.setter
    def yields(self, arg: bool, /) -> None: ...

class SimFaults:
    def __init__(self) -> None: ...

    @staticmethod
    def all() -> SimFaults: ...

    @property
    def agent_dies(self) -> float: ...

    @agent_dies.setter
    def agent_dies(self, arg: float, /) -> None: ...

    @property
    def agent_freezes(self) -> float: ...

    @agent_freezes.setter
    def agent_freezes(self, arg: float, /) -> None: ...

    @property
    def agent_slow(self) -> float: ...

    @agent_slow.setter
    def agent_slow(self, arg: float, /) -> None: ...

    @property
    def link_slow(self) -> float: ...

    @link_slow.setter
    def link_slow(self, arg: float, /) -> None: ...

    @property
    def upgrades(self) -> float: ...

    @upgrades.setter
    def upgrades(self, arg: float, /) -> None: ...

    @property
    def worker_dies(self) -> float: ...

    @worker_dies.setter
    def worker_dies(self, arg: float, /) -> None: ...

    @property
    def overflows(self) -> float: ...

    @overflows.setter
    def overflows(self, arg: float, /) -> None: ...

    @property
    def garbles(self) -> float: ...

    @garbles.setter
    def garbles(self, arg: float, /) -> None: ...

    @property
    def restates(self) -> float: ...

    @restates.setter
    def restates(self, arg: float, /) -> None: ...

    @property
    def priorities(self) -> float: ...

    @priorities.setter
    def priorities(self, arg: float, /) -> None: ...

    @property
    def cancels(self) -> float: ...

    @cancels.setter
    def cancels(self, arg: float, /) -> None: ...

    @property
    def lost_wakeups(self) -> float: ...

    @lost_wakeups.setter
    def lost_wakeups(self, arg: float, /) -> None: ...

class SimBug(enum.Enum):
    """
    What can be broken on purpose, to see that it is found: core/sim/sim.hpp.
    """

    none = 0

    twice = 1

    ended = 2

    elsewhere = 3

    lost = 4

    unheard = 5

    kept = 6

    both = 7

    neither = 8

    forgotten = 9

    unended = 10

class SimSpec:
    def __init__(self) -> None: ...

    @staticmethod
    def any_run(seed: int, agents: int = 1) -> SimSpec:
        """A short run of anything, by its seed."""

    @property
    def workers(self) -> int: ...

    @workers.setter
    def workers(self, arg: int, /) -> None: ...

    @property
    def agents(self) -> int: ...

    @agents.setter
    def agents(self, arg: int, /) -> None: ...

    @property
    def records(self) -> int: ...

    @records.setter
    def records(self, arg: int, /) -> None: ...

    @property
    def ring(self) -> int: ...

    @ring.setter
    def ring(self, arg: int, /) -> None: ...

    @property
    def seed(self) -> int: ...

    @seed.setter
    def seed(self, arg: int, /) -> None: ...

    @property
    def faults(self) -> SimFaults: ...

    @faults.setter
    def faults(self, arg: SimFaults, /) -> None: ...

    @property
    def link_ns(self) -> int: ...

    @link_ns.setter
    def link_ns(self, arg: int, /) -> None: ...

    @property
    def agent_step_ns(self) -> int: ...

    @agent_step_ns.setter
    def agent_step_ns(self, arg: int, /) -> None: ...

    @property
    def agent_event_ns(self) -> int: ...

    @agent_event_ns.setter
    def agent_event_ns(self, arg: int, /) -> None: ...

    @property
    def worker_ns(self) -> int: ...

    @worker_ns.setter
    def worker_ns(self, arg: int, /) -> None: ...

    @property
    def preempt_ns(self) -> int: ...

    @preempt_ns.setter
    def preempt_ns(self, arg: int, /) -> None: ...

    @property
    def poll_ns(self) -> int: ...

    @poll_ns.setter
    def poll_ns(self, arg: int, /) -> None: ...

    @property
    def watchdog_ns(self) -> int: ...

    @watchdog_ns.setter
    def watchdog_ns(self, arg: int, /) -> None: ...

    @property
    def max_wait_ns(self) -> int: ...

    @max_wait_ns.setter
    def max_wait_ns(self, arg: int, /) -> None: ...

    @property
    def quantum_ns(self) -> int: ...

    @quantum_ns.setter
    def quantum_ns(self, arg: int, /) -> None: ...

    @property
    def restart_ns(self) -> int: ...

    @restart_ns.setter
    def restart_ns(self, arg: int, /) -> None: ...

    @property
    def bug(self) -> SimBug: ...

    @bug.setter
    def bug(self, arg: SimBug, /) -> None: ...

    @property
    def types(self) -> list[SimType]: ...

    @types.setter
    def types(self, arg: Sequence[SimType], /) -> None: ...

    @property
    def load(self) -> float: ...

    @load.setter
    def load(self, arg: float, /) -> None: ...

    @property
    def requests(self) -> int: ...

    @requests.setter
    def requests(self, arg: int, /) -> None: ...

    def replay(self, at_ns: bytes, types: bytes, service_ns: bytes) -> None:
        """
        These requests, in this order, instead of `load` and `requests`: uint64, uint32 and uint64 each, as bytes.
        """

class SimTypeResult:
    @property
    def name(self) -> str: ...

    @property
    def arrived(self) -> int: ...

    @property
    def done(self) -> int: ...

    @property
    def cancelled(self) -> int: ...

    @property
    def expired(self) -> int: ...

    @property
    def turned_away(self) -> int: ...

    @property
    def missed(self) -> int: ...

    @property
    def busy_ns(self) -> int: ...

    def latencies(self) -> bytes:
        """uint64 nanoseconds, ascending."""

class SimResult:
    @property
    def types(self) -> list[SimTypeResult]: ...

    @property
    def arrived(self) -> int: ...

    @property
    def done(self) -> int: ...

    @property
    def cancelled(self) -> int: ...

    @property
    def expired(self) -> int: ...

    @property
    def turned_away(self) -> int: ...

    @property
    def reruns(self) -> int: ...

    @property
    def preempted(self) -> int: ...

    @property
    def yielded(self) -> int: ...

    @property
    def events(self) -> int: ...

    @property
    def messages(self) -> int: ...

    @property
    def decisions(self) -> int: ...

    @property
    def moved(self) -> int: ...

    @property
    def refused(self) -> int: ...

    @property
    def rescans(self) -> int: ...

    @property
    def fallbacks(self) -> int: ...

    @property
    def upgrades(self) -> int: ...

    @property
    def restarts(self) -> int: ...

    @property
    def longest_gap_ns(self) -> int: ...

    @property
    def local(self) -> int: ...

    @property
    def taken_over(self) -> int: ...

    @property
    def virtual_ns(self) -> int: ...

    @property
    def busy_ns(self) -> int: ...

    @property
    def policy_error(self) -> str: ...

    @property
    def fingerprint(self) -> int: ...

    @property
    def violations(self) -> list[str]: ...

    @property
    def breaches(self) -> list[str]: ...

    @property
    def breached(self) -> int: ...

    @property
    def met(self) -> SimFaults:
        """How often each fault happened."""

def simulate(spec: SimSpec, make: Callable[[], Policy], progress: Callable[[int], None] | None = None) -> SimResult:
    """
    Plays it. `make` gives the policy of each agent that comes; `progress` hears now and then how many requests have come.
    """

class ElfProgram:
    """A static ELF file that was read and checked."""

    @property
    def facts(self) -> dict[str, Any]:
        """
        machine, position_independent, duckinfo (was read so), resident, abi (by its note: teal, duckinfo; else linux), executable_stack, entry, low, high, header_address, tls_bytes, memory_bytes,
        file_bytes (of its file pages), sha256, ranges: (address, pages, file pages, 'rwx').
        """

    @property
    def image(self) -> bytes:
        """The file pages of all ranges, one range after the other."""

def read_elf(file: bytes | bytearray | memoryview, name: str, *, duckinfo: bool = False, any_machine: bool = False, most_bytes: int = 68719476736, sha256: bytes | None = None) -> ElfProgram:
    """
    Reads and checks a static ELF file. Raises InvalidArgument, VersionMismatch. `sha256`: of the file, if it was made already.
    """

class ElfPlace:
    """
    Program memory: a memfd that programs are loaded into one after the other, page by page where they differ.
    """

    def __init__(self, nbytes: int) -> None: ...

    def load(self, program: ElfProgram, bias: int = 0) -> dict[str, int]:
        """
        pages_written, pages_zeroed, pages_same, known (it was there already), steps, ns. Raises QuotaExceeded, InvalidArgument.
        """

    def steps(self) -> list[tuple[str, int, int, int, str]]:
        """
        (what, address, bytes, offset, 'rwx') for a process with nothing of it.
        """

    def steps_since_last(self) -> list[tuple[str, int, int, int, str]]:
        """For a process that has what was there before the last load()."""

    @property
    def generation(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def fileno(self) -> int:
        """The memfd, which cannot be written through."""

class DuckLine:
    """
    The way that calls of one duck session take. One call is out at a time.
    """

    def begin(self, args: Any) -> int:
        """Starts a call with these arguments. Returns its number."""

    def clear(self) -> None:
        """Starts zeroing the output buffer; wait() for it."""

    def use(self, id: int) -> bool:
        """
        Goes over to an input buffer that the duck has mapped before, 0: to none. False: it is not mapped; ask the duck.
        """

    def wait(self, timeout_ns: int) -> bool:
        """True once the call has ended; 0: as long as it takes."""

    def look(self) -> bool:
        """Has the call ended?"""

    def answer(self) -> Tensor:
        """
        The output buffer's first bytes, as many as the program said; the same object for the same size.
        """

    def give_up(self) -> None:
        """The answer is dropped when it comes."""

    def prepare(self, nbytes: int) -> DuckCall: ...

    def ob(self) -> Tensor: ...

    def close(self) -> None: ...

    @property
    def busy(self) -> bool: ...

    @property
    def ended(self) -> bool:
        """The session is over, as far as can be told without asking."""

    @property
    def over(self) -> bool:
        """The session is over, or its duck is gone."""

    @property
    def generation(self) -> int: ...

    @property
    def prepared_calls(self) -> int: ...

    @property
    def direct_calls(self) -> int:
        """Calls that went straight to a box elsewhere, past its duck."""

    @property
    def direct(self) -> bool:
        """The box elsewhere answers such calls."""

    @property
    def last_program_ns(self) -> int: ...

class DuckCall:
    """A repeated call whose arguments are written in place."""

    def __call__(self) -> Tensor: ...

    @property
    def args(self) -> Tensor: ...

def near_duck_line(control: int, fate: int, facts: dict[str, int], socket: int, who: str) -> DuckLine:
    """
    A line to a session on this machine; the descriptors stay the caller's. socket: of the connection to its duck.
    """

def tensor_bytes(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a packed tensor."""

def map_tensor(fd: int, dtype: str, shape: Sequence[int], on_gone: Callable[[], Any]) -> tuple[Tensor, int]:
    """
    (tensor at the start of a memfd, its address); on_gone is called when nobody sees the memory any more.
    """

def memory_of(array: Any) -> tuple[int, int] | None:
    """(address, bytes) of packed elements in CPU memory, or None."""

class DuckProgram:
    """A program that was read and checked, in memory that boxes map."""

    def __init__(self, fd: int, nbytes: int, name: str, duckinfo: bool = False) -> None:
        """
        Of a sealed file; the descriptor stays the caller's. `duckinfo`: by the rules for DuckInfo programs.
        """

    @property
    def resident(self) -> bool:
        """Was it linked with duck.h's start-up code?"""

    @property
    def machine(self) -> str: ...

    @property
    def memory_bytes(self) -> int:
        """Of all its pages."""

    @property
    def image_bytes(self) -> int: ...

    @property
    def load(self) -> dict[str, int]:
        """What loading it took."""

class DuckBox:
    """A resident program as its yard sees it."""

    @property
    def facts(self) -> dict[str, int]: ...

    @property
    def control_fd(self) -> int: ...

    @property
    def fate_fd(self) -> int: ...

    @property
    def ended_fd(self) -> int: ...

    @property
    def direct_calls(self) -> int:
        """Calls that came straight from a client elsewhere, as the box says."""

    @property
    def ending(self) -> tuple[int, int, str]:
        """(fate, detail, in words); fate 0: it has not ended"""

    def map(self, id: int, fd: int, nbytes: int) -> None: ...

    def unmap(self) -> None: ...

    def forget(self, id: int) -> None: ...

    def has(self, id: int) -> bool: ...

    def close(self, limit_ns: int) -> None: ...

    def kill(self) -> None: ...

    def wait_ended(self, limit_ns: int) -> bool: ...

    def log(self, start: int, most: int) -> tuple[bytes, int]:
        """(bytes, position of the first)"""

def open_inline(program: DuckProgram, order: dict[str, Any]) -> DuckBox:
    """A session in this very process, without a sandbox; one at a time."""

class DuckYard:
    """Makes boxes, watches them, ends them."""

    def __init__(self, program: str, spares: int = 1, judge_spares: int = 1, namespaces: bool = True, demand_seccomp: bool = True) -> None: ...

    def open(self, program: DuckProgram, order: dict[str, Any], direct: DuckOffer | None = None) -> DuckBox: ...

    def refuses_direct(self, sealed: bool) -> str:
        """Why its boxes can take no direct calls; empty: they can."""

    def judge(self, program: DuckProgram, run: dict[str, Any]) -> dict[str, Any]: ...

    def judge_duckinfo(self, program: DuckProgram, run: dict[str, int]) -> dict[str, Any]:
        """
        A run of a program that was read with duckinfo=True. `run`: the fields of DuckInfoOrder (core/box/duckinfo.hpp); those left out are 0, descriptors -1.
        """

    def report(self) -> list[tuple[str, bool, str]]:
        """(what confines boxes, is it used, detail)"""

    def statistics(self) -> dict[str, int]: ...

    @property
    def zygote_pid(self) -> int: ...

    def close(self) -> None: ...

def kvm_probe() -> dict[str, object]:
    """
    What a guest could do that was run the first time this was asked: 'available', 'text' (one line), 'reason' (why not), and details.
    """

class DuckEchoTimes:
    @property
    def bare(self) -> list[int]: ...

    @property
    def bare_small(self) -> list[int]: ...

    @property
    def call(self) -> list[int]: ...

    @property
    def sealed(self) -> list[int]: ...

def measure_duck_echo(calls: int = 20000, bytes: int = 64, client_core: int = 0, duck_core: int = 1, near: str = '', far: str = '', host: str = '127.0.0.1') -> DuckEchoTimes:
    """
    Round trips in ns, in one run: a bare C echo of packets as long as ours and of `bytes`, and calls without and with a key; over the loopback, or between two network namespaces (files such as /run/netns/NAME), the duck at `host`.
    """

class DuckDirectTimes:
    @property
    def bare(self) -> list[int]: ...

    @property
    def bare_small(self) -> list[int]: ...

    @property
    def call(self) -> list[int]: ...

    @property
    def sealed(self) -> list[int]: ...

def measure_duck_direct(yard: DuckYard, sealed: DuckYard | None, program: DuckProgram, calls: int = 20000, bytes: int = 64, client_core: int = 0, box_core: int = 1, near: str = '', far: str = '', host: str = '127.0.0.1') -> DuckDirectTimes:
    """
    The same with the program in a box that the client calls directly; sealed: a yard whose boxes have libcrypto, or None.
    """

class BlobRates:
    @property
    def there(self) -> list[float]: ...

    @property
    def checked(self) -> list[float]: ...

class DuckBlobRates:
    @property
    def bare_udp(self) -> list[float]: ...

    @property
    def bare_tcp(self) -> list[float]: ...

    @property
    def bare_udp_huge(self) -> list[float]: ...

    @property
    def bare_tcp_huge(self) -> list[float]: ...

    @property
    def bare_udp_small(self) -> list[float]: ...

    @property
    def bare_tcp_small(self) -> list[float]: ...

    @property
    def udp(self) -> BlobRates: ...

    @property
    def tcp(self) -> BlobRates: ...

    @property
    def udp_sealed(self) -> BlobRates: ...

    @property
    def tcp_sealed(self) -> BlobRates: ...

def measure_duck_blob(bytes: int = 67108864, times: int = 5, client_core: int = 0, duck_core: int = 1, near: str = '', far: str = '', host: str = '127.0.0.1') -> DuckBlobRates:
    """
    Bytes per second, in one run: bare UDP and TCP, and blobs, until they are there and until they are checked; where, as measure_duck_echo().
    """

def measure_box_calls(box: DuckBox, cpu: int, bytes: int, tries: int, pause_ns: int = 0) -> list[int]:
    """Calls of a session from C++, on that CPU; ns each."""

def measure_line_echo(here: int, there: int, tries: int) -> list[int]:
    """One line of memory there and back; ns each."""

def measure_box_runs(yard: DuckYard, program: DuckProgram, file: str, cpu: int, tries: int, pause_ns: int = 0) -> tuple[list[int], list[int], list[int]]:
    """
    Judged runs of an ordinary static program, and vfork + execve + wait of its file, in turn; ns each, and the CPU time that the judge saw.
    """

def measure_box_series(yard: DuckYard, program: DuckProgram, file: str, cpu: int, tries: int) -> tuple[int, int, list[int]]:
    """
    So many judged runs one after the other until all is as before, then as many vfork + execve + wait; ns of each series, and the CPU time in each record.
    """

def flush_lines(what: Any) -> bool:
    """Drives a packed buffer out of the CPU's caches."""

class DuckOffer:
    """A socket for direct calls, and their keys."""

    @property
    def refused(self) -> str:
        """Why there is none; empty: there is one."""

    @property
    def port(self) -> int: ...

    @property
    def id(self) -> int: ...

    @property
    def sealed(self) -> bool: ...

class DuckPath:
    """A client's end of direct calls, before its session is open."""

    @property
    def port(self) -> int:
        """0: it was used."""

class DuckNet:
    """
    The network loop of a duck: a thread with all sockets. After close() every use raises Closed.
    """

    def __init__(self, udp: str, tcp: str, key: bytes, idle_ns: int, blob_bytes: int, multicast: str = '') -> None: ...

    def start(self) -> None: ...

    def close(self) -> None:
        """Tells every peer, and closes all sockets."""

    @property
    def udp_port(self) -> int: ...

    @property
    def tcp_port(self) -> int: ...

    @property
    def event_fd(self) -> int: ...

    def next_event(self) -> tuple[int, int, int, bytes, str, bytes, int, int] | None:
        """
        (kind: 1 opened, 2 lost, 3 message, 4 blob, 5 checked, 6 wrong_key; connection, id, bytes, text, SHA-256, size, descriptor)
        """

    def reply(self, connection: int, id: int, data: bytes) -> None: ...

    def attach(self, connection: int, box: DuckBox) -> int: ...

    def direct(self, connection: int, port: int) -> DuckOffer:
        """
        A socket for the box of that client's next session, which answers it at that port of the client's.
        """

    def detach(self, session: int) -> None: ...

    def figures(self) -> dict[str, int]: ...

def duck_put_group(ducks: Sequence[DuckRemote], sha256: bytes, data: Any, group: str, interface: str, bytes_per_second: int, datagram_bytes: int, timeout_ns: int) -> tuple[int, list[int]]:
    """
    Sends a blob to several ducks by multicast, then to each what it lacks. Returns the bytes of both. Raises as put() does.
    """

class DuckRemote:
    """A client's connection to a duck elsewhere."""

    def __init__(self, address: str, key: bytes, tcp: bool, connect_ns: int) -> None: ...

    def request(self, message: bytes, timeout_ns: int) -> bytes: ...

    def put(self, sha256: bytes, data: Any, timeout_ns: int) -> int:
        """
        Sends a blob. Returns the bytes that were sent: 0 when the duck had it.
        """

    def direct(self) -> DuckPath | None:
        """A path for direct calls of the next session; over TCP there is none."""

    def line(self, session: int, args_bytes: int, ob_bytes: int, who: str, path: DuckPath | None = None, port: int = 0, id: int = 0) -> DuckLine:
        """
        Calls of a session. path: of direct(), used up; port, id: of the duck's offer.
        """

    def ping(self, timeout_ns: int) -> int:
        """Nanoseconds of one round trip."""

    def close(self) -> None: ...

    @property
    def alive(self) -> bool: ...

    @property
    def address(self) -> str: ...

    def figures(self) -> dict[str, int]: ...

MAX_SEATS: int = 4

SHORTEST_QUANTUM_NS: int = 20000

class AgentLoop:
    """The mechanism around a policy, at one seat: core/agents/agent.hpp."""

    def __init__(self, view_fd: int, desk_fd: int, policy: Policy, link: str = 'shm', idle_ns: int = 50000) -> None: ...

    def step(self, now: int) -> int:
        """One look at CLOCK_MONOTONIC now; how much there was to do."""

    def leave(self) -> None:
        """Takes back what is staged, and says that it goes."""

    def set_idle(self, ns: int) -> None: ...

    def set(self, name: str, value: str) -> bool:
        """poll or coalesce; False: it has no setting of that name."""

    def settings(self) -> list[tuple[str, str]]: ...

    def numbers(self) -> dict[str, int]: ...

    def dump(self) -> str: ...

class Rounds:
    """Several agents' loops in one thread."""

    def __init__(self) -> None: ...

    def add(self, loop: AgentLoop) -> None: ...

    def remove(self, loop: AgentLoop) -> None: ...

    def run(self, slice_ns: int) -> None:
        """For so long."""

def seat_numbers(sweeper: Sweeper, seat: int, incarnation: int) -> dict[str, Any]:
    """
    Counters and histograms of one incarnation; `desk`: what its agent says. Raises NotFound.
    """

def seat_pulse(sweeper: Sweeper, seat: int, incarnation: int) -> tuple[int, int, int]:
    """
    Refusals that no correct agent meets; ns that the agent says it was busy, and events that it says it saw. Raises NotFound.
    """
