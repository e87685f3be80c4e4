"""Why a gang waits, does not fit or is ill-formed: typed causes with numbers in them, by subject."""

from __future__ import annotations

from muster.domain.causes.cause import ConstraintCause
from muster.domain.causes.ill_formed import IllFormed
from muster.domain.causes.not_planned import NotPlanned
from muster.domain.causes.out_of_place import OutOfPlace
from muster.domain.causes.too_little import TooLittle
from muster.domain.causes.waiting import Waiting

Cause = IllFormed | Waiting | TooLittle | OutOfPlace | ConstraintCause | NotPlanned
