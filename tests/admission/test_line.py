"""Who is next."""

from __future__ import annotations

from gateway.admission import DrainRate, Line, Place, share

A, B = frozenset({"a"}), frozenset({"b"})


def test_first_come_first_served() -> None:
    """In the order of joining, whoever leaves between; leaving twice changes nothing."""
    line = Line()
    places = [Place(float(number)) for number in range(6)]
    for place in places:
        line.join(place)
    for number in (0, 3, 3):
        line.leave(places[number])

    assert [places[number] for number in (1, 2, 4, 5)] == list(line)
    assert (4, 4, [places[1]]) == (len(line), line.newcomers, line.firsts())


def test_whoever_was_admitted_before_stands_ahead_by_arrival() -> None:
    """Retries are in order among themselves, and before those who wait for a first time; they are no newcomers."""
    line = Line()
    newcomer, late, early = Place(30.0), Place(20.0, A, again=True), Place(10.0, A, again=True)
    for place in (newcomer, late, early):
        line.join(place)

    assert [early, late, newcomer] == list(line)
    assert 1 == line.newcomers
    line.leave(early)
    line.leave(early)
    assert [late, newcomer] == list(line)


def test_two_that_came_at_the_same_moment_are_two() -> None:
    """Leaving takes away the one that leaves."""
    line = Line()
    twins = [Place(1.0, A, again=True), Place(1.0, A, again=True)]
    for place in twins:
        line.join(place)
    line.leave(twins[1])

    assert [twins[0]] == list(line)
    assert next(iter(line)) is twins[0]


def test_who_must_not_go_somewhere_does_not_hold_up_those_behind() -> None:
    """One for each set of excluded workers, up to the first that may go anywhere."""
    line = Line()
    places = [
        Place(1.0, A, again=True),
        Place(2.0, A, again=True),
        Place(3.0, B, again=True),
        Place(4.0),
        Place(5.0),
    ]
    for place in places:
        line.join(place)

    assert [places[0], places[2], places[3]] == line.firsts()
    assert [] == Line().firsts()


def test_the_drain_rate_is_that_of_late() -> None:
    """Nothing is known at first; a steady rate is measured from its first seconds on; an end of it is noticed."""
    rate = DrainRate()
    assert rate.seconds_for(10, 0.0) is None
    for tick in range(1, 101):
        rate.freed(tick * 0.25)
        if tick >= 8:
            assert 3.5 < rate.per_second(tick * 0.25) < 4.8, "four a second"
    pause_s = rate.seconds_for(20, 25.0)
    assert pause_s is not None
    assert 4.4 < pause_s < 5.6
    assert rate.per_second(35.0) < 2.0
    assert rate.seconds_for(20, 2000.0) is None


def test_a_bound_is_shared_out_so_that_nobody_has_none() -> None:
    """Rounded up: a queue of two over four processes is one for each; nobody queues where nobody may."""
    assert [250, 1, 0, 1000] == [share(1000, 4), share(2, 4), share(0, 4), share(1000, 1)]
