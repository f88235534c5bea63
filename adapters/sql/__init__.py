"""The journal in an SQL database: SQLite, PostgreSQL, MySQL or MariaDB."""
