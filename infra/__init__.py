"""How the project is deployed, locally and on AWS. Nothing in production imports it."""
