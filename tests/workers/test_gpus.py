"""The ledger of GPU leases: who gets what, who waits and why, and what is taken out of use."""

from __future__ import annotations

from gateway.workers.gpu_sets import Link
from gateway.workers.gpus import GIB, GpuLedger, GpuNeed, Granted, Impossible, Quarantine, Waiting
from gateway.workers.placement import Gpu


def ledger(
    count: int = 2, *, list_only: dict[int, str] | None = None, nvlinks: tuple[tuple[int, int], ...] = ()
) -> GpuLedger:
    return GpuLedger(
        [Gpu(index, total_bytes=80 * GIB) for index in range(count)],
        {frozenset(pair): Link.NVLINK for pair in nvlinks},
        usable_by_list_only=list_only or {},
    )


def granted(book: GpuLedger, need: GpuNeed, used: dict[int, int] | None = None) -> tuple[int, ...]:
    answer = book.request(need, used or {})
    assert isinstance(answer, Granted), answer
    return answer.gpus


def sentence(book: GpuLedger, need: GpuNeed, used: dict[int, int] | None = None) -> str:
    answer = book.request(need, used or {})
    assert isinstance(answer, Waiting), answer
    return answer.sentence


def test_each_worker_gets_a_gpu_of_its_own() -> None:
    """A worker that says nothing about memory takes the whole GPU; the third waits, and is told for whom."""
    book = ledger()
    assert (0,) == granted(book, GpuNeed("a-0"))
    assert (1,) == granted(book, GpuNeed("a-1"))
    book.started("a-0")
    assert "Waits for 1 GPU: GPU 0 is held by a-0 (92%); GPU 1 is held by a-1, which is starting." == sentence(
        book, GpuNeed("a-2")
    )
    book.release("a-1")
    assert (1,) == granted(book, GpuNeed("a-2"))


def test_a_tensor_parallel_worker_gets_a_linked_pair() -> None:
    """And the next one the other pair."""
    book = ledger(4, nvlinks=((0, 3), (1, 2)))
    assert (0, 3) == granted(book, GpuNeed("a-0", count=2))
    assert (1, 2) == granted(book, GpuNeed("a-1", count=2))
    assert "Waits for 2 GPUs" in sentence(book, GpuNeed("a-2", count=2))


def test_small_workers_share_a_gpu_up_to_its_memory() -> None:
    """0.45 and 0.45 fit, a third 0.1 does not: contexts need the rest."""
    book = ledger(1)
    for name in ("a", "b"):
        assert (0,) == granted(book, GpuNeed(name, share=0.45))
        book.started(name)
    assert "a (45%), b (45%)" in sentence(book, GpuNeed("c", share=0.1))
    book.release("a")
    assert (0,) == granted(book, GpuNeed("c", share=0.1))


def test_exact_sizes_are_summed_as_well() -> None:
    """30 GiB twice fit into 80 GiB, three times they do not."""
    book = ledger(1)
    for name in ("a", "b"):
        granted(book, GpuNeed(name, bytes_each=30 * GIB))
        book.started(name)
    assert "GPU 0 is held by a (38%), b (38%)" in sentence(book, GpuNeed("c", bytes_each=30 * GIB))


def test_one_worker_at_a_time_starts_on_a_gpu() -> None:
    """vLLM measures free memory while it starts; a neighbour that starts too would spoil it."""
    book = ledger(1)
    granted(book, GpuNeed("a", share=0.3))
    assert "GPU 0 is held by a, which is starting" in sentence(book, GpuNeed("b", share=0.3))
    book.started("a")
    assert (0,) == granted(book, GpuNeed("b", share=0.3))


def test_free_gpus_come_before_shared_ones() -> None:
    """Sharing is for want of anything else."""
    book = ledger(2)
    granted(book, GpuNeed("a", share=0.3))
    book.started("a")
    assert (1,) == granted(book, GpuNeed("b", share=0.3))


def test_other_processes_memory_is_respected() -> None:
    """vLLM would refuse to start there; the wait says why."""
    book = ledger(2)
    used = {0: 30 * GIB, 1: 0}
    assert (1,) == granted(book, GpuNeed("a", preferred=(0,)), used)
    assert "GPU 0 has 30.0 GiB in use by other processes" in sentence(book, GpuNeed("b"), used)
    assert (0,) == granted(book, GpuNeed("c", share=0.5), used)


def test_memory_of_our_own_workers_is_not_taken_for_others() -> None:
    """A neighbour of ours uses what it has reserved."""
    book = ledger(1)
    granted(book, GpuNeed("a", share=0.5))
    book.started("a")
    assert (0,) == granted(book, GpuNeed("b", share=0.4), {0: 40 * GIB})


def test_listed_gpus_are_given_and_no_others() -> None:
    """Even those that others use, which are otherwise left alone."""
    book = ledger(3, list_only={0: "is used by other processes", 2: "is cut into MIG slices"})
    assert (1,) == granted(book, GpuNeed("a"))
    assert (0,) == granted(book, GpuNeed("b", listed=(0,)))
    assert "GPU 0 is held by b" in sentence(book, GpuNeed("c", listed=(0,)))


def test_what_this_machine_cannot_give_is_told_at_once() -> None:
    """No wait would help."""
    book = ledger(2, list_only={1: "is cut into MIG slices"})
    assert Impossible("GPU 7 is listed, but this machine has GPU 0, 1") == book.request(GpuNeed("a", listed=(7,)), {})
    answer = book.request(GpuNeed("a", count=2), {})
    assert Impossible("2 GPU(s) are needed, 1 may be used; GPU 1 is cut into MIG slices") == answer


def test_a_worker_cannot_hold_gpus_twice() -> None:
    """Its earlier launch must be gone first."""
    book = ledger(2)
    granted(book, GpuNeed("a"))
    assert "Waits until its own earlier launch has given GPU 0 back." == sentence(book, GpuNeed("a"))


def test_two_failed_starts_in_a_row_quarantine_a_gpu_and_another_takes_over() -> None:
    """With the reason, which those who wait are told."""
    book = ledger(2)
    for attempt in range(2):
        assert (0,) == granted(book, GpuNeed("a", preferred=(0,)))
        assert ((0,) if attempt else ()) == book.start_failed("a", (0,), "CUDA error: unspecified launch failure")
        book.release("a")
    assert (1,) == granted(book, GpuNeed("a", preferred=(0,)))
    told = sentence(book, GpuNeed("b"))
    assert "GPU 0 is quarantined (2 starts of a failed there in a row, last: CUDA error: unspecified" in told


def test_a_start_that_works_clears_the_record() -> None:
    """Two failures with a success between are two accidents."""
    book = ledger(2)
    granted(book, GpuNeed("a"))
    book.start_failed("a", (0,), "x")
    book.served("a")
    assert () == book.start_failed("a", (0,), "x")


def test_a_worker_that_fails_everywhere_is_itself_the_cause() -> None:
    """What it accused is acquitted, and it cannot take the whole machine out of use."""
    book = ledger(4)
    book.start_failed("a", (0,), "KeyError")
    assert (0,) == book.start_failed("a", (0,), "KeyError")
    assert () == book.start_failed("a", (1,), "KeyError")
    assert {} == dict(book.quarantined)
    for _ in range(5):
        assert () == book.start_failed("a", (1,), "KeyError")
    granted(book, GpuNeed("a"))
    book.served("a")
    book.start_failed("a", (2,), "KeyError")
    assert (2,) == book.start_failed("a", (2,), "KeyError")


def test_the_only_gpu_is_not_quarantined_for_failed_starts() -> None:
    """The worker's own restarts give up instead, with the cause, which tells more than an endless wait."""
    book = ledger(1)
    book.start_failed("a", (0,), "x")
    assert () == book.start_failed("a", (0,), "x")
    assert {} == dict(book.quarantined)


def test_quarantine_lasts_until_it_is_forgiven_or_the_memory_is_back() -> None:
    """A fault of the hardware stays; memory that comes back late does not."""
    book = ledger(2)
    book.quarantine(0, Quarantine("Xid 79"))
    book.quarantine(1, Quarantine("70 GiB still in use", free_again_below=GIB))
    book.settle({0: 0, 1: 2 * GIB})
    assert {0, 1} == set(book.quarantined)
    book.settle({0: 0, 1: 0})
    assert {0} == set(book.quarantined)
    book.forgive(0)
    assert {} == dict(book.quarantined)


def test_a_quarantined_gpu_keeps_its_first_reason() -> None:
    """The later ones are mostly its consequences; unknown GPUs are none."""
    book = ledger(1)
    book.quarantine(0, Quarantine("Xid 79"))
    book.quarantine(0, Quarantine("memory"))
    book.quarantine(9, Quarantine("not ours"))
    assert {0: "Xid 79"} == {index: why.reason for index, why in book.quarantined.items()}


def test_an_adopted_worker_holds_its_gpus() -> None:
    """Nobody else gets them; it does not block neighbours' starts once it serves."""
    book = ledger(2)
    book.adopt(GpuNeed("a", share=0.5), (1,))
    assert ("a",) == book.holders(1)
    assert (0,) == granted(book, GpuNeed("b"))
