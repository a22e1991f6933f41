-- Version 4. Where this boot of the machine lies on the time of the ledger, for each cloud (core/lease/timekeeping.py).
create table anchor (
  cloud text primary key,
  boot text not null,
  zero real not null,
  sure integer not null,
  ahead_s real
) strict;
