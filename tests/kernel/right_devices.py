"""Right kernels that look as if they were wrong: many devices."""

from __future__ import annotations

import numpy as np

import meshwright.numpy as mnp
from meshwright import lax
from meshwright import pallas as pl
from meshwright.pallas import tpu as pltpu
from tests.kernel.collectives import ANY, DMA, REGULAR, barrier, neighbors
from tests.kernel.corpus import F32, TWO, VMEM, around, right

SAME = lambda x: x
SHIFTED = lambda x: np.roll(x, 1, 0)
TOTAL = lambda x: np.broadcast_to(x.sum(0), x.shape)


@right(lambda x: x + np.roll(x, 1, 0), 4, [DMA, DMA, VMEM])
def what_is_sent_is_read_meanwhile(x_ref, out_ref, send, receive, came):
    left, to = around()
    barrier(left, to)
    copy = pltpu.async_remote_copy(x_ref, came, send, receive, device_id={"x": to})
    out_ref[...] = x_ref[...]
    copy.wait()
    out_ref[...] += came[...]


@right(SHIFTED, 4, [DMA, DMA, VMEM, VMEM])
def a_buffer_is_overwritten_when_it_is_sent(x_ref, out_ref, send, receive, mine, came):
    left, to = around()
    mine[...] = x_ref[...]
    barrier(left, to)
    copy = pltpu.async_remote_copy(mine, came, send, receive, device_id={"x": to})
    copy.wait_send()
    mine[...] = mnp.zeros_like(mine)
    copy.wait_recv()
    out_ref[...] = came[...] + mine[...]


@right(lambda x: np.roll(x, 3, 0), 4, [TWO, DMA, DMA((2,)), REGULAR])
def a_ring_of_two_buffers_with_room(x_ref, out_ref, buffers, send, receive, room):
    left, to = around()
    buffers[0] = x_ref[...]
    barrier(left, to)
    for step in range(3):
        a, b = step % 2, 1 - step % 2
        if step:
            pltpu.semaphore_wait(room)
        pltpu.async_remote_copy(buffers.at[a], buffers.at[b], send, receive.at[b], device_id={"x": to}).wait()
        if step < 2:
            pltpu.semaphore_signal(room, device_id={"x": left})
    out_ref[...] = buffers[1]


@right(lambda x: np.stack([x[0], 2 * x[0]]), 2, [pltpu.VMEM((2, 1, 16), F32), DMA, DMA((2,)), REGULAR])
def rows_flow_through_two_slots_on_credit(x_ref, out_ref, slots, send, receive, credit):
    """Device 0 sends eight rows; device 1 gives a slot back when it has used it."""
    me = lax.axis_index("x")
    barrier(1 - me)

    def copy(i):
        rows = x_ref.at[pl.ds(i, 1)]
        return pltpu.make_async_remote_copy(rows, slots.at[i % 2], send, receive.at[i % 2], device_id={"x": 1})

    for i in range(8):
        if me == 0:
            if i >= 2:
                pltpu.semaphore_wait(credit)
            copy(i).start()
            copy(i).wait_send()
        else:
            copy(i).wait_recv()
            out_ref[pl.ds(i, 1)] = slots[i % 2] * 2
            if i < 6:
                pltpu.semaphore_signal(credit, device_id={"x": 0})
    if me == 0:
        out_ref[...] = x_ref[...]


@right(TOTAL, 4, [TWO, DMA((2,)), DMA((2,))])
def sums_by_doubling(x_ref, out_ref, came, send, receive):
    me = lax.axis_index("x")
    out_ref[...] = x_ref[...]
    barrier(*[d for d in range(4) if d != me])
    for round_ in range(2):
        other = int(me) ^ (1 << round_)
        pltpu.async_remote_copy(
            out_ref, came.at[round_], send.at[round_], receive.at[round_], device_id={"x": other}
        ).wait()
        out_ref[...] += came[round_]


@right(lambda x: np.broadcast_to(x[0], x.shape), 4, [VMEM, DMA, DMA])
def a_tree_of_copies(x_ref, out_ref, came, send, receive):
    """0 to 1, then 0 to 2 and 1 to 3."""
    me = int(lax.axis_index("x"))
    barrier(*[d for d in range(4) if d != me])

    def copy(to):
        return pltpu.make_async_remote_copy(came, came, send, receive, device_id={"x": to})

    if me == 0:
        came[...] = x_ref[...]
    else:
        copy(me).wait_recv()
    for to in {0: (1, 2), 1: (3,)}.get(me, ()):
        copy(to).start()
        copy(to).wait_send()
    out_ref[...] = came[...]


@right(lambda x: np.roll(x, 1, 0) + np.roll(x, -1, 0), 4, [TWO, DMA((2,)), DMA((2,))])
def halos_from_both_sides(x_ref, out_ref, came, send, receive):
    left, to = around()
    barrier(left, to)
    copies = [
        pltpu.make_async_remote_copy(x_ref, came.at[way], send.at[way], receive.at[way], device_id={"x": device})
        for way, device in enumerate((left, to))
    ]
    for copy in copies:
        copy.start()
    for copy in reversed(copies):
        copy.wait()
    out_ref[...] = came[0] + came[1]


@right(lambda x: np.stack([x[0], x[0] + x[2], x[2]]), 3, [VMEM, DMA, DMA((2,)), REGULAR])
def order_goes_through_a_third_device(x_ref, out_ref, came, send, receive, turn):
    """0 writes to 1; 1 tells 2 when it has read that; 2 writes to the same place."""
    me = int(lax.axis_index("x"))
    barrier(*[d for d in range(3) if d != me])

    def copy(way):
        return pltpu.make_async_remote_copy(x_ref, came, send, receive.at[way], device_id={"x": 1})

    if me == 1:
        copy(0).wait_recv()
        out_ref[...] = came[...]
        pltpu.semaphore_signal(turn, device_id={"x": 2})
        copy(1).wait_recv()
        out_ref[...] += came[...]
        return
    if me == 2:
        pltpu.semaphore_wait(turn)
    copy(me // 2).start()
    copy(me // 2).wait_send()
    out_ref[...] = x_ref[...]


@right(lambda x: np.concatenate([x.sum(0, keepdims=True), x[1:]]), 4, [VMEM, DMA, DMA, REGULAR])
def devices_write_to_the_same_place_in_turn(x_ref, out_ref, came, send, receive, turn):
    """Device 0 calls one after the other."""
    me = int(lax.axis_index("x"))
    barrier(*[d for d in range(4) if d != me])
    out_ref[...] = x_ref[...]

    def copy():
        return pltpu.make_async_remote_copy(x_ref, came, send, receive, device_id={"x": 0})

    if me == 0:
        for other in range(1, 4):
            pltpu.semaphore_signal(turn, device_id={"x": other})
            copy().wait_recv()
            out_ref[...] += came[...]
    else:
        pltpu.semaphore_wait(turn)
        copy().start()
        copy().wait_send()


@right(TOTAL, 4, [pltpu.VMEM((4, 8, 16), F32), DMA((4,)), DMA((4,))])
def everyone_writes_to_everyone_each_to_a_place_of_its_own(x_ref, out_ref, came, send, receive):
    me, _, _, n = neighbors()
    others = [lax.rem(me + k, n) for k in range(1, n)]
    barrier(*others)
    for k, to in enumerate(others):
        pltpu.make_async_remote_copy(x_ref, came.at[me], send.at[k], receive.at[me], device_id={"x": to}).start()
    out_ref[...] = x_ref[...]
    for k, other in enumerate(others):
        copy = pltpu.make_async_remote_copy(x_ref, came.at[other], send.at[k], receive.at[other], device_id={"x": me})
        copy.wait()
        out_ref[...] += came[other]


@right(lambda x: np.broadcast_to(x[:, :2].reshape(8, 16), x.shape), 4, [DMA((4,)), DMA((4,))])
def rows_of_devices_that_do_not_overlap(x_ref, out_ref, send, receive):
    me, _, _, n = neighbors()
    rows = pl.ds(me * 2, 2)
    barrier(*[lax.rem(me + k, n) for k in range(1, n)])
    for k in range(n):
        pltpu.make_async_remote_copy(
            x_ref.at[0:2], out_ref.at[rows], send.at[k], receive.at[k], device_id={"x": lax.rem(me + k, n)}
        ).start()
    for k in range(n):
        pltpu.make_async_remote_copy(x_ref.at[0:2], out_ref.at[0:2], send.at[k], receive.at[k], {"x": me}).wait()


@right(SAME, 2, [TWO, DMA, DMA((2,))])
def there_and_back_on_one_send_semaphore(x_ref, out_ref, buffers, send, receive):
    other = 1 - lax.axis_index("x")
    buffers[0] = x_ref[...]
    barrier(other)
    pltpu.async_remote_copy(buffers.at[0], buffers.at[1], send, receive.at[0], device_id={"x": other}).wait()
    # What comes back may come only when the other has read it: it sends it itself.
    pltpu.async_remote_copy(buffers.at[1], out_ref, send, receive.at[1], device_id={"x": other}).wait()


@right(SHIFTED, 4, [DMA, DMA])
def a_second_barrier_in_a_scope_that_others_may_enter_later(x_ref, out_ref, send, receive):
    left, to = around()
    barrier(left, to)

    def again(semaphore):
        for device in (left, to):
            pltpu.semaphore_signal(semaphore, device_id={"x": device})
        pltpu.semaphore_wait(semaphore, 2)

    pl.run_scoped(again, REGULAR)
    pltpu.async_remote_copy(x_ref, out_ref, send, receive, device_id={"x": to}).wait()


@right(lambda x: np.roll(x, 2, 0), 4, [])
def a_scope_entered_twice_with_copies_between_devices(x_ref, out_ref):
    left, to = around()

    def scoped(scratch, send, receive, entered):
        # All are in the scope before anybody writes to its memory, and nobody leaves before its neighbor has sent.
        for device in (left, to):
            pltpu.semaphore_signal(entered, device_id={"x": device})
        pltpu.semaphore_wait(entered, 2)
        pltpu.async_remote_copy(x_ref, scratch, send, receive, device_id={"x": to}).wait()
        return scratch[...]

    barrier(left, to)
    first = pl.run_scoped(scoped, VMEM, DMA, DMA, REGULAR)
    barrier(left, to)

    def second(mine, scratch, send, receive, entered):
        mine[...] = first
        for device in (left, to):
            pltpu.semaphore_signal(entered, device_id={"x": device})
        pltpu.semaphore_wait(entered, 2)
        pltpu.async_remote_copy(mine, scratch, send, receive, device_id={"x": to}).wait()
        return scratch[...]

    out_ref[...] = pl.run_scoped(second, VMEM, VMEM, DMA, DMA, REGULAR)


@right(lambda x: 2 * np.roll(x, 1, 0), 4, [DMA, DMA, pltpu.VMEM((8, 16), F32)], in_specs=[ANY], out_specs=ANY)
def a_pipeline_over_what_has_come(x_ref, out_ref, send, receive, came):
    left, to = around()
    barrier(left, to)
    pltpu.async_remote_copy(x_ref, came, send, receive, device_id={"x": to}).wait()
    spec = pl.BlockSpec((2, 16), lambda i: (i, 0))

    def double(row_ref, block_ref):
        block_ref[...] = row_ref[...] * 2

    pltpu.emit_pipeline(double, grid=(4,), in_specs=[spec], out_specs=spec)(came, out_ref)


@right(SAME, 4, [REGULAR, VMEM])
def a_token_goes_round(x_ref, out_ref, token, scratch):
    me, _, to, n = neighbors()
    barrier(*[lax.rem(me + k, n) for k in range(1, n)])

    @pl.when(me > 0)
    def _():
        pltpu.semaphore_wait(token)

    scratch[...] = x_ref[...]
    out_ref[...] = scratch[...]

    @pl.when(me < n - 1)
    def _():
        pltpu.semaphore_signal(token, device_id={"x": to})


@right(lambda x: np.stack([x[0], x[0], x[2], x[3]]), 4, [DMA, DMA])
def devices_that_nobody_needs_return_at_once(x_ref, out_ref, send, receive):
    me = int(lax.axis_index("x"))
    if me > 1:
        out_ref[...] = x_ref[...]
        return
    barrier(1 - me)
    copy = pltpu.make_async_remote_copy(x_ref, out_ref, send, receive, device_id={"x": 1})
    if me == 0:
        out_ref[...] = x_ref[...]
        copy.start()
        copy.wait_send()
    else:
        copy.wait_recv()


@right(lambda x: x + 1, 4, [VMEM, DMA, DMA])
def a_copy_to_oneself_over_the_link(x_ref, out_ref, scratch, send, receive):
    me = lax.axis_index("x")
    pltpu.async_remote_copy(x_ref, scratch, send, receive, device_id={"x": me}).wait()
    out_ref[...] = scratch[...] + 1


@right(SHIFTED, 4, [DMA((2,)), DMA((2,)), TWO], grid=(2,))
def a_send_of_one_grid_step_is_waited_for_in_the_next(x_ref, out_ref, send, receive, came):
    left, to = around()
    i = pl.program_id(0)

    def copy(step):
        rows = pl.ds(step * 4, 4)
        return pltpu.make_async_remote_copy(
            x_ref.at[rows], came.at[0, rows], send.at[step], receive.at[step], device_id={"x": to}
        )

    @pl.when(i == 0)
    def _():
        barrier(left, to)
        copy(0).start()

    @pl.when(i == 1)
    def _():
        copy(1).start()
        copy(0).wait()
        copy(1).wait()
        out_ref[...] = came[0]


@right(lambda x: np.roll(x, 4, 0), 4, [TWO, DMA((2,)), DMA((2,)), REGULAR((2,))])
def two_rings_on_semaphores_of_their_own_meet(x_ref, out_ref, buffers, send, receive, room):
    """Each half goes round its own way, and comes home."""
    left, to = around()
    buffers[0] = x_ref[...]
    barrier(left, to)
    for step in range(4):
        a, b = step % 2, 1 - step % 2
        copies = []
        for way, there in enumerate((to, left)):
            half = pl.ds(way * 4, 4)
            if step:
                pltpu.semaphore_wait(room.at[way])
            copies.append(
                pltpu.async_remote_copy(
                    buffers.at[a, half], buffers.at[b, half], send.at[way], receive.at[way], device_id={"x": there}
                )
            )
        for way, (copy, back) in enumerate(zip(copies, (left, to), strict=True)):
            copy.wait()
            if step < 3:
                pltpu.semaphore_signal(room.at[way], device_id={"x": back})
    out_ref[...] = buffers[0]


@right(SHIFTED, 4, [DMA, DMA], params={"collective_id": None})
def without_a_collective_id_all_have_entered(x_ref, out_ref, send, receive):
    _, to = around()
    pltpu.async_remote_copy(x_ref, out_ref, send, receive, device_id={"x": to}).wait()


@right(SAME, 3, [REGULAR])
def a_semaphore_is_looked_at_until_the_others_have_signalled(x_ref, out_ref, sem):
    me = lax.axis_index("x")
    barrier(*around())
    pltpu.semaphore_signal(sem, device_id={"x": 0})
    if me == 0:
        lax.while_loop(lambda _: pltpu.semaphore_read(sem) < 3, lambda n: n + 1, 0)
        pltpu.semaphore_wait(sem, 3)
    out_ref[...] = x_ref[...]
