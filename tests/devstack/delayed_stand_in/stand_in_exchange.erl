%% Exchange type x-delayed-message for tests, where the real plugin is not present. RabbitMQ 3.10.
%%
%% It does what `postdate migrate plugin` relies on: the underlying type routes, a message with x-delay waits in the
%% tables of stand_in_delays, and is routed by its exchange's record when due.
-module(stand_in_exchange).
-behaviour(rabbit_exchange_type).
-include_lib("rabbit_common/include/rabbit.hrl").
-include_lib("rabbit_common/include/rabbit_framing.hrl").
-export([description/0, serialise_events/0, route/2, validate/1, validate_binding/2, create/2, delete/3,
         policy_changed/2, add_binding/3, remove_bindings/3, assert_args_equivalence/2, info/1, info/2]).
-rabbit_boot_step({?MODULE, [{description, "stand-in for x-delayed-message"},
                             {mfa, {rabbit_registry, register, [exchange, <<"x-delayed-message">>, ?MODULE]}},
                             {requires, rabbit_registry},
                             {enables, recovery}]}).

description() -> [{name, <<"x-delayed-message">>}, {description, <<"stand-in">>}].
serialise_events() -> false.

route(X, Delivery) ->
    case delay(Delivery) of
        {Type, Delay} when is_integer(Delay), Delay > 0, Type =/= timestamp ->
            stand_in_delays:wait(X, Delivery, Delay),
            [];
        _ -> (below(X)):route(X, Delivery)
    end.

delay(#delivery{message = #basic_message{content = Content}}) ->
    case Content#content.properties of
        #'P_basic'{headers = Headers} when is_list(Headers) -> rabbit_misc:table_lookup(Headers, <<"x-delay">>);
        _ -> undefined
    end.

validate(X) -> (below(X)):validate(X).
validate_binding(X, B) -> (below(X)):validate_binding(X, B).
create(Tx, X) -> (below(X)):create(Tx, X).
delete(Tx, X, Bs) -> (below(X)):delete(Tx, X, Bs).
policy_changed(Old, New) -> (below(Old)):policy_changed(Old, New).
add_binding(Tx, X, B) -> (below(X)):add_binding(Tx, X, B).
remove_bindings(Tx, X, Bs) -> (below(X)):remove_bindings(Tx, X, Bs).
assert_args_equivalence(X, Args) -> (below(X)):assert_args_equivalence(X, Args).

info(X) -> info(X, [messages_delayed]).
info(X, Items) -> [{messages_delayed, stand_in_delays:count(X)} || lists:member(messages_delayed, Items)].

below(#exchange{arguments = Arguments}) ->
    {_, Type} = rabbit_misc:table_lookup(Arguments, <<"x-delayed-type">>),
    {ok, Module} = rabbit_registry:lookup_module(exchange, rabbit_registry:binary_to_type(Type)),
    Module.
