"""All pages, in the order in which their addresses are looked up. Whoever adds a page adds its module here."""

from bireme.web.pages import admin, job, nodes, now, planning, queue, services, use

PAGES = (
    *now.pages.table,
    *queue.pages.table,
    *job.pages.table,
    *nodes.pages.table,
    *services.pages.table,
    *planning.pages.table,
    *use.pages.table,
    *admin.pages.table,
)

MENU = (
    ("now", "/now", "Now", "n"),
    ("queue", "/queue", "Queue", "q"),
    ("nodes", "/nodes", "Nodes", "d"),
    ("services", "/services", "Services", "s"),
    ("use", "/use", "Use", "u"),
    ("whatif", "/whatif", "What if", "w"),
    ("submit", "/submit", "Submit", "b"),
    ("admin", "/admin", "Admin", "a"),
)
"""Of every page: the name of the entry, where it leads, its words, and the key after `g`."""
