"""One file per kind of source: from files as people have them to users, features and labels."""
