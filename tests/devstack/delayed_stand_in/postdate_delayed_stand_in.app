{application, postdate_delayed_stand_in,
 [{description, "Stand-in for x-delayed-message in tests"},
  {vsn, "1"},
  {modules, [stand_in_exchange, stand_in_delays]},
  {registered, [rabbit_delayed_message]},
  {applications, [kernel, stdlib, rabbit_common, rabbit]},
  {env, []}]}.
