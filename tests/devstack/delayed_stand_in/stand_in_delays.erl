%% Where messages of stand_in_exchange wait: one process and two Mnesia tables a node, with the names and the rows of
%% the real plugin. They are what `postdate migrate plugin` works on.
-module(stand_in_delays).
-behaviour(gen_server).
-include_lib("rabbit_common/include/rabbit.hrl").
-include_lib("rabbit_common/include/rabbit_framing.hrl").
-export([start_link/0, wait/3, count/1, init/1, handle_call/3, handle_cast/2, handle_info/2]).
-rabbit_boot_step({?MODULE, [{description, "stand-in for the delays of x-delayed-message"},
                             {mfa, {rabbit_sup, start_child, [?MODULE]}},
                             {requires, rabbit_registry},
                             {enables, recovery}]}).
-record(delay_key, {timestamp, exchange}).
-record(delay_entry, {delay_key, delivery, ref}).
-record(delay_index, {delay_key, const}).
-define(NAME, rabbit_delayed_message).
-define(LOOK_MS, 1).

start_link() -> gen_server:start_link({local, ?NAME}, ?MODULE, [], []).

wait(X, Delivery, Delay) -> gen_server:call(?NAME, {wait, X, Delivery, Delay}, infinity).

count(#exchange{name = Name}) ->
    Rows = [{#delay_entry{delay_key = #delay_key{timestamp = '_', exchange = '$1'}, delivery = '_', ref = '_'},
             [{'==', {element, 2, '$1'}, {const, Name}}], [true]}],
    length(mnesia:dirty_select(table(""), Rows)).

table(Suffix) -> list_to_atom(atom_to_list(?NAME) ++ atom_to_list(node()) ++ Suffix).

init([]) ->
    create("", delay_entry, record_info(fields, delay_entry), bag),
    create("_index", delay_index, record_info(fields, delay_index), ordered_set),
    ok = rabbit_table:wait([table(""), table("_index")]),
    erlang:send_after(?LOOK_MS, self(), look),
    {ok, none}.

create(Suffix, Record, Fields, Type) ->
    mnesia:create_table(table(Suffix), [{record_name, Record}, {attributes, Fields}, {type, Type},
                                        {disc_copies, [node()]}]).

handle_call({wait, X, Delivery, Delay}, _From, State) ->
    Key = #delay_key{timestamp = erlang:system_time(millisecond) + Delay, exchange = X},
    mnesia:dirty_write(table(""), #delay_entry{delay_key = Key, delivery = Delivery, ref = make_ref()}),
    mnesia:dirty_write(table("_index"), #delay_index{delay_key = Key, const = true}),
    {reply, ok, State}.

handle_cast(_, State) -> {noreply, State}.

handle_info(look, State) ->
    look(),
    erlang:send_after(?LOOK_MS, self(), look),
    {noreply, State}.

look() ->
    Now = erlang:system_time(millisecond),
    case mnesia:dirty_first(table("_index")) of
        #delay_key{timestamp = At} = Key when At =< Now ->
            [deliver(Key#delay_key.exchange, One) || One <- mnesia:dirty_read(table(""), Key)],
            mnesia:dirty_delete(table(""), Key),
            mnesia:dirty_delete(table("_index"), Key),
            look();
        _ -> ok
    end.

%% The header becomes negative for exchanges behind. What consumers get keeps it: its bytes are not written again.
deliver(X, #delay_entry{delivery = #delivery{message = Message} = Delivery}) ->
    #basic_message{content = #content{properties = Properties} = Content} = Message,
    Headers = rabbit_misc:set_table_value(Properties#'P_basic'.headers, <<"x-delay">>, signedint, -1),
    Passed = Content#content{properties = Properties#'P_basic'{headers = Headers}},
    D = Delivery#delivery{message = Message#basic_message{content = Passed}},
    rabbit_amqqueue:deliver(rabbit_amqqueue:lookup(rabbit_exchange:route(X, D)), D).
