"""What can be chosen while one types: files after `@`, commands after `/`."""
