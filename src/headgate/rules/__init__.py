"""Rules: which requests are limited, and how much.

model      what a rule is                  request   what a request looks like to a rule
pacing     read large rule sets without delaying other threads

format/    text → rules: document (json_reader, yaml_reader), fields (on field_types and composite_types), building/,
           rule_set_builder, error_collector, linting, overlap, schema, starter, cases
matching/  pure. A request → its charges: normalized_request (paths, addresses), path_patterns, path_trie,
           condition_index, identity, charging, rulebook; explain and conditions say why a rule applies or not
sources/   where rules are kept: files, ZooKeeper, etcd
live/      the rules in use: following, last_good, change_check, editing, opening
"""
