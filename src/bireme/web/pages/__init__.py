"""All pages, in the order in which their addresses are looked up. Whoever adds a page adds its module here."""

from bireme.web.pages import job, now, queue

PAGES = (*now.pages.table, *queue.pages.table, *job.pages.table)

MENU = (
    ("now", "/now", "Now", "n"),
    ("queue", "/queue", "Queue", "q"),
)
"""Of every page: the name of the entry, where it leads, its words, and the key after `g`."""
