"""Settings of the course."""

# Where the badges point, unless git has a GitHub remote named `origin`, which takes precedence.
REPOSITORY = "https://github.com/OWNER/REPOSITORY"
BRANCH = "main"
SOLUTIONS_BRANCH = "solutions"  # the same tree with the notebooks solved and run
