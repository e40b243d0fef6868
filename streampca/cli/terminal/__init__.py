"""Terminal output of a run: progress, small pictures and tables; in a log, the same facts as plain lines.

All output goes through `rich`, which knows the capabilities of the terminal. `progress` listens to events; `pictures`
and `tables` draw models and images.
"""

from .pictures import draw_images, draw_leading
from .progress import Progress
from .tables import components_table, planned_and_actual, print_fit, print_model, print_trust

__all__ = [
    "Progress",
    "components_table",
    "draw_images",
    "draw_leading",
    "planned_and_actual",
    "print_fit",
    "print_model",
    "print_trust",
]
