"""Watches every collective and point-to-point operation, from Python and from C++, where the dispatcher sees it.

A kernel on the dispatch key ``BackendSelect`` of each ``c10d`` operator writes the call's record and then
lets the call go on to the backend. Nothing of torch is overridden, and the kernels leave without a trace.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from distdiag import events
from distdiag.errors import guarded
from distdiag.hooks._patch import Undo, when_imported
from distdiag.hooks.groups import learn_group
from distdiag.recorder import Flight, GroupState, Interned, Recorder
from distdiag.thinning import READ_AT_FIRST, READ_EACH

MAX_SIGNATURES_PER_SITE = 512
"""A site whose shapes change with every call would otherwise fill memory."""
BLOCKING = "monitored_barrier"
"""It returns no work, because it returns only when it ended."""
PROOFS = READ_AT_FIRST - 1
"""First calls of a signature whose kind of reduction is compared with that of the first, at the least."""
PROVEN_STEPS = 2
"""And all in this many steps: a loop over metrics reduces many in one line, most of them by sums."""
MOST_PROOFS = 256
"""A job whose steps nobody sees has no second one."""
SELDOM = READ_EACH - 1
"""And each call after one whose number has none of these bits."""
VARIES = -1
FNV_PRIME = 16777619
MASK_32 = 0xFFFFFFFF


def install(recorder: Recorder) -> Undo:
    """Put a recording kernel in front of every ``c10d`` operator."""
    return when_imported("torch.distributed.distributed_c10d", lambda module: _install(recorder, module))


def _install(recorder: Recorder, c10d: ModuleType) -> Undo:
    from distdiag.hooks._operators import BELOW, OPERATORS, put_in_front, redispatch

    begin = guarded("record a call", _begin(recorder, c10d))
    follow = guarded("follow a call", _follow(recorder, c10d))
    fail = guarded("record a failed call", recorder.fail)

    def kernel_of(operator: Any, send_on: Any) -> Callable[..., Any]:
        below = BELOW.__and__

        def kernel(keyset: Any, *args: Any) -> Any:
            flight = begin(operator, args)
            try:
                result = send_on(below(keyset), *args)
            except BaseException as error:
                if flight is not None:
                    fail(flight, error)
                # the traceback holds this frame, and with it the tensors
                del args, error
                raise
            if flight is not None:
                follow(flight, result)
            return result

        return kernel

    sent_on = {operator: redispatch("c10d", operator.schema) for operator in OPERATORS}
    return put_in_front(
        "c10d", {operator.schema: kernel_of(operator, send_on) for operator, send_on in sent_on.items() if send_on}
    )


def _begin(recorder: Recorder, c10d: ModuleType) -> Callable[[Any, tuple[Any, ...]], Flight | None]:
    """Return the function that writes the record of a call of an operator with its arguments.

    It runs on the path of every collective; each name it uses is bound here for that reason.
    """
    import _thread

    at, getframe, clock = recorder.sites.at, sys._getframe, time.monotonic_ns
    get_ident, handled_now = _thread.get_ident, sys.exception
    journal, modules = recorder.journal, recorder.modules
    append = journal.append
    nowhere = recorder.sites.nowhere
    settle = partial(_settled, recorder)
    states, coalescing, unbox = recorder.groups, recorder.coalescing, c10d.ProcessGroup.unbox

    def begin(operator: Any, args: tuple[Any, ...]) -> Flight | None:
        group_object = unbox(args[operator.group])
        state = states.get(group_object) or learn_group(recorder, c10d, group_object)
        thread = get_ident()
        try:
            frame = getframe(3)  # past this function, its guard and the kernel
        except ValueError:  # a C++ thread has no more frames
            frame = None
        site = at(frame)
        if site is nowhere and recorder.backward_site is not None:
            site = recorder.backward_site
        key = (operator.schema, state, thread, modules.get(thread) if modules else None, operator.key(args))
        signature = site.signatures.get(key)
        if signature is None or signature.unproven or not recorder.calls & SELDOM:
            signature = settle(operator, args, site, state, key, signature)
            if signature is None:
                return None
        recorder.calls = call = recorder.calls + 1
        unusual = ""
        handled = handled_now()
        if state.last_thread != thread or handled is not None or coalescing or recorder.capturing:
            unusual = _unusual(recorder, state, thread, handled, coalescing.get(group_object))
        state.last_thread = thread
        state.last_call = call
        if operator.p2p:
            state.p2p = sequence = state.p2p + 1
            start_ns = clock()
            append(
                f'{{"kind":"call","call":{call}{signature.text}{sequence}{recorder.context}{start_ns}'
                f"{unusual}}}\n".encode()
            )
        else:
            state.collectives = sequence = state.collectives + 1
            state.chain = chain = ((state.chain ^ signature.digest) * FNV_PRIME) & MASK_32
            state.path_chain = path_chain = ((state.path_chain ^ site.digest) * FNV_PRIME) & MASK_32
            start_ns = clock()
            append(
                f'{{"kind":"call","call":{call}{signature.text}{sequence}{recorder.context}{start_ns}'
                f',"chain":{chain},"path_chain":{path_chain}{unusual}}}\n'.encode()
            )
        if journal.segment != signature.segment:
            _rewrite(recorder, signature, state, site)
        flight = Flight()
        flight.call = call
        flight.sequence = sequence
        flight.signature = signature
        flight.start_ns = start_ns
        flight.wait_start_ns = 0
        flight.work = None
        if signature.on_device:
            recorder.note_arrival(flight, state)
        return flight

    return begin


def _follow(recorder: Recorder, c10d: ModuleType) -> Callable[[Flight, Any], None]:
    """Return the function that keeps a call in mind until its end is known."""
    flights = recorder.flights
    unbox = c10d.Work.unbox

    def follow(flight: Flight, result: Any) -> None:
        if flight.signature.on_device:
            return  # holding the work would hold its outputs
        if result is None:
            if flight.signature.event.op == BLOCKING:
                recorder.end(flight, time.monotonic_ns())
            return
        work = flight.work = unbox(result[-1] if type(result) is tuple else result)
        flights[id(work)] = flight

    return follow


def _unusual(
    recorder: Recorder,
    state: GroupState,
    thread: int,
    handled: BaseException | None,
    coalesced: int | None,
) -> str:
    """Return the fields that few calls have."""
    fields = ""
    if state.last_thread not in (0, thread) and any(f.call == state.last_call for f in list(recorder.flights.values())):
        fields += ',"contended":true'
    if handled is not None:
        fields += f',"handling":{events.encode_text(type(handled).__name__)}'
    if coalesced is not None:
        fields += f',"coalesced":{coalesced}'
    if recorder.capturing:
        fields += ',"captured":true'
    return fields


def _rewrite(recorder: Recorder, signature: Interned, state: GroupState, site: Any) -> None:
    """Write what a call refers to into the segment it stands in, so that the segment can be read alone."""
    signature.segment = recorder.journal.segment
    if state.segment != recorder.journal.segment:
        state.segment = recorder.journal.segment
        recorder.write(state.event)
    recorder.path_number(site)
    recorder.write(signature.event)


def _intern(
    recorder: Recorder, operator: Any, args: tuple[Any, ...], site: Any, state: GroupState, key: Any
) -> Interned | None:
    """Return the signature of a new kind of call, None for calls on tensors without data: tracing is no collective."""
    import threading

    from distdiag.hooks._operators import describe, is_traced

    if is_traced(args[0]):
        return None
    recorder.signatures += 1
    described = describe(
        operator,
        args,
        state.ranks,
        number=recorder.signatures,
        group=state.event.group,
        path=site.number,
    )
    _, _, thread, described.module, _ = key
    described.thread = "MainThread" if thread == recorder.main_thread else threading.current_thread().name
    if len(site.signatures) >= MAX_SIGNATURES_PER_SITE:
        site.signatures.clear()
    made = site.signatures[key] = Interned(described)
    if operator.reduce_op is not None:
        made.unproven = MOST_PROOFS
        made.proven_step = recorder.step + PROVEN_STEPS
    return made


def _settled(
    recorder: Recorder,
    operator: Any,
    args: tuple[Any, ...],
    site: Any,
    state: GroupState,
    key: Any,
    known: Interned | None,
) -> Interned | None:
    """Return the signature that a call really has, given the one that was found without its kind of reduction.

    To ask for the kind takes 2.4 us, so it is asked in the first steps of a signature, and seldom after them; where
    several kinds were seen, at each call. ``distdiag/reductions`` says what others may take for read.
    """
    if known is None:
        return _intern(recorder, operator, args, site, state, key)
    if operator.reduce_op is None:
        return known
    from distdiag.hooks._operators import kind_of_reduction

    kind = kind_of_reduction(args[operator.reduce_op])
    if kind == known.event.reduce_op:
        if known.unproven > 0:
            known.unproven -= 1
            if recorder.step >= known.proven_step and known.unproven <= MOST_PROOFS - PROOFS:
                known.unproven = 0
        return known
    known.unproven = VARIES
    other: Interned | None = site.signatures.get((key, kind))
    if other is None:
        other = _intern(recorder, operator, args, site, state, key)
        site.signatures[key] = known
        site.signatures[key, kind] = other
    return other
