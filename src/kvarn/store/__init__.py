"""The database: tables, migrations, and one repository for each aggregate. SQL stands nowhere else."""
