"""`songline doctor`: what serving needs, what of it is amiss on this machine, and what to do about it."""

from compose.doctor.command import doctor

__all__ = ["doctor"]
