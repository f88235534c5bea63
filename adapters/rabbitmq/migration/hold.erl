%% Hold the delayed-message plugin until an exchange has been replaced, and move its waiting messages to another one.
%%
%% For `rabbitmqctl eval`. @EXCHANGE@ is the plugin's exchange that is about to be replaced, @WAITING@ the exchange of
%% the plugin's that takes its waiting messages. @PROOF@ is a queue that only the broker of rabbitmq.url has, so that no
%% other one is held by mistake. All with their virtual host. @WAIT_MS@: how long to hold.
%%
%% A waiting message is a row with its exchange's whole record in the key. The plugin routes it when due by that record,
%% whether the exchange still exists or not. Here the row gets the other exchange's record. Its due moment stays.
%% The plugin's process, one on each node, is suspended whenever rows change, so no message becomes due meanwhile.
%%
%% Returns {held, Moved, Waiting}: how many messages were moved, and how many wait in the other exchange now. Then all
%% nodes are suspended, for @WAIT_MS@ at most or until the exchange has gone or has another type. After that the rest is
%% moved: also what channels published before and the plugin had not stored. Else returns {refused, Why}, and nothing
%% was changed.
From = @EXCHANGE@,
To = @WAITING@,
Table = fun(Node) -> list_to_atom("rabbit_delayed_message" ++ atom_to_list(Node)) end,
Index = fun(Node) -> list_to_atom("rabbit_delayed_message" ++ atom_to_list(Node) ++ "_index") end,
Call = fun(Node, M, F, A) -> case Node =:= node() of true -> apply(M, F, A); false -> rpc:call(Node, M, F, A) end end,
Nodes = [N || N <- [node() | nodes()], is_pid(rpc:call(N, erlang, whereis, [rabbit_delayed_message]))],
Suspend = fun() -> [ok = sys:suspend({rabbit_delayed_message, N}, 10000) || N <- Nodes] end,
Resume = fun() -> [catch sys:resume({rabbit_delayed_message, N}, 10000) || N <- Nodes] end,
Rows = fun(Name, Result) ->
    [{{delay_entry, {delay_key, '_', '$1'}, '_', '_'}, [{'==', {element, 2, '$1'}, {const, Name}}], [Result]}]
end,
Known = fun(N) ->
    Call(N, mnesia, table_info, [Table(N), attributes]) =:= [delay_key, delivery, ref] andalso
    Call(N, mnesia, table_info, [Index(N), attributes]) =:= [delay_key, const] andalso
    Call(N, mnesia, table_info, [Table(N), type]) =:= bag
end,
%% All rows of a key at once, the entries before their index: an index without an entry stops the plugin of 3.10.
MoveKey = fun(N, {delay_key, At, _} = Old, Record) ->
    New = {delay_key, At, Record},
    Entries = Call(N, mnesia, dirty_read, [Table(N), Old]),
    [ok = Call(N, mnesia, dirty_write, [Table(N), setelement(2, Entry, New)]) || Entry <- Entries],
    ok = Call(N, mnesia, dirty_write, [Index(N), {delay_index, New, true}]),
    ok = Call(N, mnesia, dirty_delete, [Index(N), Old]),
    ok = Call(N, mnesia, dirty_delete, [Table(N), Old]),
    length(Entries)
end,
Some = fun() ->
    {ok, Record} = rabbit_exchange:lookup(To),
    lists:sum([case Call(N, ets, select, [Table(N), Rows(From, '$_'), 1000]) of
        {Found, _} -> lists:sum([MoveKey(N, Key, Record) || Key <- lists:usort([element(2, Row) || Row <- Found])]);
        '$end_of_table' -> 0
    end || N <- Nodes])
end,
All = fun Again(Done) -> case Some() of 0 -> Done; Moved -> Again(Done + Moved) end end,
Is = fun(Name, Type) -> case rabbit_exchange:lookup(Name) of {ok, X} -> element(3, X) =:= Type; _ -> false end end,
Replaced = fun Again(Until) ->
    case {Is(From, 'x-delayed-message'), erlang:monotonic_time(millisecond) > Until} of
        {false, _} -> true;
        {true, true} -> false;
        _ -> timer:sleep(5), Again(Until)
    end
end,
%% In turns, so that publishers wait a tenth of a second and not as long as a million rows take.
InTurns = fun Again(Done) ->
    Suspend(), Moved = Some(), Resume(), timer:sleep(20),
    case Moved < 1000 of true -> Done + Moved; false -> Again(Done + Moved) end
end,
Caller = self(),
Work = fun() ->
    Moved = InTurns(0),
    Suspend(),
    Rest = All(0),
    Caller ! {held, Moved + Rest, lists:sum([Call(N, ets, select_count, [Table(N), Rows(To, true)]) || N <- Nodes])},
    case Replaced(erlang:monotonic_time(millisecond) + @WAIT_MS@) of
        %% Requests that waited meanwhile are stored between the two, and moved by the next turn.
        true -> [begin All(0), Resume(), timer:sleep(Ms), Suspend() end || Ms <- [0, 0, 10, 50, 200, 1000]], All(0);
        false -> ok
    end
end,
Holder = fun() -> try Work() catch _:Why -> Caller ! {refused, Why} after Resume() end end,
case {rabbit_amqqueue:lookup(@PROOF@), Nodes =/= [] andalso lists:all(Known, Nodes)} of
    {{error, _}, _} -> {refused, other_broker};
    {_, false} -> {refused, unknown_plugin};
    _ ->
        {Pid, _} = spawn_monitor(Holder),
        spawn(fun() -> Ref = monitor(process, Pid), receive {'DOWN', Ref, _, _, _} -> Resume() end end),
        receive
            {held, Count, Waiting} -> {held, Count, Waiting};
            {refused, Why} -> {refused, Why};
            {'DOWN', _, _, _, Why} -> {refused, Why}
        after 300000 -> {refused, timeout} end
end.
