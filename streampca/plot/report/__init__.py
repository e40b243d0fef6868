"""The HTML report: what a model and its collection look like, on one page that needs nothing beside it.

A report is made in three steps. `survey` examines samples of a collection in bounded memory and picks those worth a
look; `figures` says which pictures there are and draws them one at a time; `page` puts these, and what `facts` says in
words and tables, into one file (`contents` is their order). `allowance` shares the memory. Without a collection the
page has what a model shows by itself, and says what is left out.
"""

from .figures import overview, picture_files
from .memory import check_room
from .survey import Survey, survey
from .write import EXAMINED, ReportFiles, write_report

__all__ = ["EXAMINED", "ReportFiles", "Survey", "check_room", "overview", "picture_files", "survey", "write_report"]
