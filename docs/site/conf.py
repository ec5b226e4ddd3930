# Read by Sphinx; scripts/docs says where the pages are.
project = "duet"
extensions = ["myst_parser"]
root_doc = "docs/index"
html_theme = "furo"
html_title = "duet"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
myst_heading_anchors = 4
# Between two headings of a generated page there may be none of the level between them.
suppress_warnings = ["myst.header"]
