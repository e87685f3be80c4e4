"""What is done for a gang when an alarm of its goes off."""

from __future__ import annotations

from muster.gangs.gang import Alarm, Gang
from muster.gangs.instructions import EventReason
from muster.gangs.life import Phase, Trigger
from muster.gangs.lives import Lives


def due(lives: Lives, gang: Gang, alarm: Alarm, now: float, same: bool) -> None:
    """`same`: the gang is still in the phase in which the alarm was set."""
    match alarm:
        case Alarm.HALF:
            lives.half_too_long(gang, now)
        case Alarm.NUMBERS:
            lives.say_numbers(gang, now)
        case Alarm.COUNT if same:
            lives.count(gang, now)
        case Alarm.ANSWERS if same:
            lives.wait_for_planner(gang)
        case Alarm.PHASE if same:
            _phase_due(lives, gang, now)
        case _:
            pass


def _phase_due(lives: Lives, gang: Gang, now: float) -> None:
    match gang.phase:
        case Phase.COLLECTING:
            lives.voice.emit(gang, EventReason.WAITING, gang.reason)
        case Phase.PLANNED | Phase.RESERVING:
            lives.withdraw(gang, Trigger.TOO_LATE, "its pods were not ready to bind in time", now, pause=True)
        case Phase.PERMITTED:
            lives.bindings(gang, now, late=True)
        case Phase.GIVEN_UP:
            lives.evict(gang, now, again=True)
        case Phase.WITHDRAWN:
            lives.settle(gang, now)
        case Phase.UNPLACEABLE:
            gang.exclusions = {key: out for key, out in gang.exclusions.items() if out.until > now}
            lives.again(gang, Trigger.FREED)
        case _:
            pass
