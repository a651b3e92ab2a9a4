"""Development scripts. A package only so that import-linter can load import_contracts."""
