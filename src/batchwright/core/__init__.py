"""Words: records, ports, errors, schemas, ids. No I/O, no clock."""
