"""Looks at every row of a dataset and brings all of them into one form."""

from services.catalog.examination.examine import Examination, Progress, examine

__all__ = ["Examination", "Progress", "examine"]
