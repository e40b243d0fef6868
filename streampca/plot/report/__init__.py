"""The HTML report: a model and its collection on one self-contained page.

A report is written in three steps. `survey` examines samples of a collection in bounded memory and selects those to
draw; `figures` draws the figures one at a time; `page` writes these and the facts and tables of `text` to one file.
`memory` divides the budget. Without a collection the page shows the model alone, and says what is left out.
"""

from .figures import figure_files, overview
from .memory import check_room
from .survey import Survey, survey
from .write import EXAMINED, ReportFiles, write_report

__all__ = ["EXAMINED", "ReportFiles", "Survey", "check_room", "figure_files", "overview", "survey", "write_report"]
